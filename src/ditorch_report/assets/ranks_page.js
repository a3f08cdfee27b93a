"use strict";
// Ranks side by side: the same figures of every process, and which op takes longer on one than on the others.
const RanksPage = (() => {
  const MAX_OPS = 12;
  const SLOWER = 1.1;

  async function draw(run) {
    const title = element("h1", {}, t("Ranks"));
    const rows = run.table.map((process, place) => ({ ...process, ...run.ranks[place], ...facts(run, process) }));
    if (!rows.length) return [title, Elements.missing(t("No process recorded calls in this run."), "--time --steps 2:5", run)];
    const number = (name, text, show, minor = false) => ({ title: text, value: (place) => rows[place][name] ?? 0, show: (place) => show(rows[place][name] ?? 0), numeric: true, minor });
    const table = new Table.SortedTable({
      label: t("Ranks"), name: "rank-", rows: Table.places(rows),
      open: (place) => { location.hash = Address.of("calls", { process: place }); },
      columns: [
        { title: t("rank"), value: (place) => rows[place].rank, show: (place) => element("a", { href: Address.of("calls", { process: place }) }, t("rank {0}", rows[place].rank)), numeric: true },
        { title: t("host"), value: (place) => rows[place].host, minor: true },
        { title: "pid", value: (place) => rows[place].pid, show: (place) => String(rows[place].pid), numeric: true, minor: true },
        number("steps", t("steps"), Words.count, true),
        number("calls", t("calls"), Words.count),
        number("wrong", t("wrong"), (value) => (value ? element("b", { class: "bad" }, value) : "0")),
        number("forward", t("forward"), Words.milliseconds, true),
        number("backward", t("backward"), Words.milliseconds, true),
        { ...number("collectives", t("collectives"), Words.milliseconds, true), show: (place) => (rows[place].collectives === null ? "–" : Words.milliseconds(rows[place].collectives)) },
        number("memory", t("memory peak"), (value) => (value ? Words.bytes(value) : "–"), true),
      ],
    });
    return [title, said(rows).map((text) => element("p", { class: "lead" }, text)), table.root, rows.length > 1 ? opTable(rows) : null];
  }

  // what an engineer would look for in the table: is it one rank, and which?
  function said(rows) {
    const found = [];
    const bad = rows.filter((row) => row.wrong);
    if (rows.length < 2) return found;
    if (bad.length === rows.length) found.push(t("All ranks have wrong calls: the op is wrong, not one card."));
    else if (bad.length) found.push(t("Wrong calls on rank {0} only: look at that card and its machine first.", bad.map((row) => row.rank).join(", ")));
    const own = rows.map((row) => row.forward + row.backward);
    const slowest = own.indexOf(Math.max(...own));
    const others = median(own.filter((_, place) => place !== slowest));
    if (others > 0 && own[slowest] > SLOWER * others) {
      found.push(t("Rank {0} is the slowest: {1} in its own ops, {2} the others' median.", rows[slowest].rank, Words.milliseconds(own[slowest]), Words.fold(own[slowest] / others)));
    }
    if (rows.some((row) => row.collectives)) found.push(t("Time in collectives has the waiting for other ranks in it: the rank with the least is the one that the others wait for."));
    return found;
  }

  const median = (values) => [...values].sort((a, b) => a - b)[Math.floor((values.length - 1) / 2)] || 0;

  function facts(run, process) {
    const record = (run.processes || []).find((one) => one.pid === process.pid && one.host === process.host) || {};
    const used = (run.usage || []).find((one) => one.pid === process.pid) || {};
    return { steps: record.steps ?? 0, memory: used.device_memory_peak ?? used.host_memory_peak ?? 0 };
  }

  function opTable(rows) {
    const totals = new Map();
    for (const row of rows) for (const [name, time] of Object.entries(row.ops)) totals.set(name, (totals.get(name) || 0) + time);
    const ops = [...totals].sort((a, b) => b[1] - a[1]).slice(0, MAX_OPS).map(([name]) => name);
    if (!ops.length) return null;
    const style = getComputedStyle(document.documentElement);
    const colour = d3.scaleLinear().domain([1, 1.5, 3]).range(["--heat-none", "--heat-edge", "--heat-wrong"].map((name) => style.getPropertyValue(name).trim())).clamp(true);
    const body = ops.map((name) => {
      const times = rows.map((row) => row.ops[name] || 0);
      const usual = [...times].sort((a, b) => a - b)[Math.floor((times.length - 1) / 2)] || 1;
      const cells = times.map((time) => {
        const cell = element("td", { class: "number", title: t("{0} of the median", Words.fold(time / usual)) }, Words.milliseconds(time));
        cell.style.background = colour(time / usual);
        return cell;
      });
      return element("tr", {}, element("th", { scope: "row" }, Elements.op(name)), cells);
    });
    const head = rows.map((row) => element("th", { scope: "col", class: "number" }, t("rank {0}", row.rank)));
    return Elements.section(t("Time of ops, rank by rank"), element("p", {}, t("Coloured where a rank takes longer than the median.")),
      element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": t("Time of ops, rank by rank") }, element("table", { class: "small" },
        element("thead", {}, element("tr", {}, element("th", { scope: "col" }, t("op")), head)), element("tbody", {}, body))));
  }

  return { draw };
})();

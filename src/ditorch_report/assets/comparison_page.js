"use strict";
// Two runs: the first call that differs and whether it is guilty, modules, and times beside each other.
const ComparisonPage = (() => {
  async function draw(run, index) {
    const found = index.comparison ? await Store.get(index.comparison) : null;
    const [first, second] = index.runs;
    const title = element("h1", {}, t("Comparison of two runs"));
    if (!found && !second) return [title, Elements.missing(t("Give two runs: ditorch report GOOD BAD. With statistics of both, the first call that differs is named:"), "--capture=statistics --out good", run)];
    return [
      title,
      found && found.problem ? element("p", { class: "missing" }, found.problem) : null,
      found && !found.problem ? verdict(found, await callsOf(found, index)) : null,
      found && !found.problem ? tables(found) : null,
      !found ? element("p", { class: "note" }, t("Both runs need statistics (--capture=statistics) for the first call that differs.")) : null,
      second ? times(first, second) : null,
    ];
  }

  // of both runs, as far as they are in this file: [run, its place, its list of calls]
  function callsOf(found, index) {
    return Promise.all(found.runs.map(async (path) => {
      const place = index.runs.findIndex((run) => run.path === path);
      return place < 0 ? null : { name: index.runs[place].name, place, run: index.runs[place], list: await CallList.of(index.runs[place]) };
    }));
  }

  // the page of that call in each of them
  function links(first, runs) {
    return runs.map((one, side) => {
      if (!one || !one.list) return null;
      const process = one.run.table.findIndex((process) => process.rank === first.rank);
      const address = one.list.address(one.list.place(process, side ? first.other_forward_id : first.forward_id));
      return address ? element("a", { class: "button quiet", href: Address.of(address, { run: one.place }) }, t("The call in {0}", one.name)) : null;
    });
  }

  function typeNext(found, first) {
    const second = found.second_pass;
    if (first.capture) return [element("p", { class: "then" }, t("Type next:")), Elements.command(`ditorch replay ${Words.quoted(first.capture)} --acc_check`)];
    return second ? [element("p", { class: "then" }, t("Capture the data of what differs, then compare again:")), Elements.command(second.command)] : null;
  }

  function verdict(found, runs) {
    const first = found.first_divergence;
    const counts = found.counts;
    if (!first) {
      return element("div", { class: "verdict good" }, element("h2", {}, t("No divergence")),
        element("p", { class: "lead" }, t("{0} agree within rounding.", Words.calls(counts.calls))));
    }
    const place = Words.place(first.where);
    return element("div", { class: "verdict wrong" },
      element("p", { class: "kicker" }, t("The first call that differs")),
      element("h2", { class: "guilty" }, Elements.dotted(first.op)),
      element("p", { class: "lead" }, first.kind === "guilty"
        ? t("Guilty: its inputs agree within rounding, its results do not.") : t("Not guilty: what it was given differs already.")),
      first.reason ? element("p", { class: "reason" }, Words.reason(first.reason)) : null,
      Elements.definitions([
        [t("apart"), t("results {0}, inputs {1} (relative to their norms)", Words.number(first.distance), Words.number(first.inputs))],
        [t("module"), element("code", {}, first.module || t("outside of modules"))],
        [t("line"), element("span", {}, `${place.name} `, element("code", {}, place.text))],
        [t("where"), Words.list([t("step {0}", first.step), t("rank {0}", first.rank), t(first.phase), `${first.part}${first.place}`])],
        [t("compared"), Words.calls(counts.calls)],
        [t("runs"), found.runs.join(" | ")],
      ]),
      element("p", { class: "actions" }, links(first, runs)),
      typeNext(found, first));
  }

  function tables(found) {
    const places = (rows, label, name) => (rows.length ? Elements.section(label, new Table.SortedTable({
      label, name, rows: Table.places(rows),
      columns: [
        { title: t("op"), value: (place) => rows[place].op, show: (place) => Elements.op(rows[place].op) },
        { title: t("apart"), value: (place) => Number(rows[place].distance), show: (place) => Words.number(Number(rows[place].distance)), numeric: true },
        { title: t("inputs"), value: (place) => Number(rows[place].inputs), show: (place) => Words.number(Number(rows[place].inputs)), numeric: true, minor: true },
        { title: t("step"), value: (place) => rows[place].step, numeric: true, minor: true },
        { title: t("phase"), value: (place) => t(rows[place].phase), minor: true },
        { title: t("module"), value: (place) => rows[place].module },
        { title: t("line"), value: (place) => rows[place].where, show: (place) => Elements.source(rows[place].where), minor: true },
      ],
    }).root) : null);
    const modules = found.modules;
    return [
      places(found.guilty, t("Guilty, the first one first"), "guilty-"),
      places(found.chain, t("How it went on"), "chain-"),
      places(found.worst, t("Furthest apart"), "worst-"),
      places(found.suspects, t("Whose data would tell most"), "suspect-"),
      modules.length ? Elements.section(t("Modules, in the order in which they ran"), new Table.SortedTable({
        label: t("Modules, in the order in which they ran"), name: "module-", rows: Table.places(modules),
        columns: [
          { title: t("module"), value: (place) => modules[place].module || t("outside of modules") },
          { title: t("apart"), value: (place) => Number(modules[place].distance), show: (place) => Words.number(Number(modules[place].distance)), numeric: true },
          { title: t("guilty"), value: (place) => modules[place].guilty, numeric: true },
          { title: t("same to the bit"), value: (place) => modules[place].same, show: (place) => `${modules[place].same} / ${modules[place].events}`, numeric: true, minor: true },
          { title: t("worst op"), value: (place) => modules[place].op || "", show: (place) => Elements.op(modules[place].op || ""), minor: true },
        ],
      }).root) : null,
      found.not_comparable.length ? Elements.section(t("What cannot be compared"), element("ul", {}, found.not_comparable.map((text) => element("li", {}, text)))) : null,
    ];
  }

  function times(first, second) {
    const total = (run) => new Map(run.ops.map((row) => [row.op, { calls: row.calls, time: row.forward + row.backward, wrong: row.compared ? row.wrong : -1 }]));
    const [a, b] = [total(first), total(second)];
    const none = { calls: 0, time: 0, wrong: -1 };
    const wrong = (value) => (value < 0 ? "–" : value ? element("b", { class: "bad" }, Words.count(value)) : "0");
    const rows = [...new Set([...a.keys(), ...b.keys()])].map((op) => ({ op, a: a.get(op) || none, b: b.get(op) || none }));
    if (!rows.length) return null;
    const timed = [first, second].every((run) => run.ops.some((row) => row.forward + row.backward > 0));
    const column = (title, value, show, minor = false) => ({ title, value: (place) => value(rows[place]), show: (place) => show(value(rows[place])), numeric: true, minor });
    return Elements.section(t("Op by op: {0} | {1}", first.name, second.name), new Table.SortedTable({
      label: t("Op by op: {0} | {1}", first.name, second.name), name: "both-", rows: Table.places(rows), sort: timed ? "-4" : "-2",
      columns: [
        { title: t("op"), value: (place) => rows[place].op, show: (place) => Elements.op(rows[place].op) },
        ...(timed ? [
          column(`${t("time")} A`, (row) => row.a.time, Words.milliseconds, true),
          column(`${t("time")} B`, (row) => row.b.time, Words.milliseconds, true),
          column("B − A", (row) => row.b.time - row.a.time, (value) => (value < 0 ? `−${Words.milliseconds(-value)}` : Words.milliseconds(value))),
        ] : []),
        column(`${t("calls")} A`, (row) => row.a.calls, Words.count, true),
        column(`${t("calls")} B`, (row) => row.b.calls, Words.count, true),
        column(`${t("wrong")} A`, (row) => row.a.wrong, wrong),
        column(`${t("wrong")} B`, (row) => row.b.wrong, wrong),
      ],
    }).root);
  }

  return { draw };
})();

"use strict";
// The first page: what is wrong, in words; what is slow; what was not looked at; what to type next.
const OverviewPage = (() => {
  const MAX_WRONG = 8;
  const MAX_SLOW = 7;

  async function draw(run, index) {
    if (!run) return [element("h1", {}, t("Results")), element("p", {}, t("This file has no run, only results of other commands."))];
    const list = await CallList.of(run);
    const waits = await Store.part(run, "waits");
    return [
      verdict(run, list),
      cards(run, waits),
      run.wrong.length > 1 ? wrongOnes(run, list) : null,
      slowOnes(run),
      notLookedAt(run),
      next(run),
      about(run, index),
    ];
  }

  function verdict(run, list) {
    const worst = run.wrong[0];
    if (!worst) return run.alerts.length ? alerted(run) : healthy(run);
    const address = list && worst.call >= 0 ? Address.of(list.address(worst.call)) : null;
    const place = Words.place(worst.where);
    return element("div", { class: "verdict wrong", role: "region", "aria-label": t("Verdict") },
      element("p", { class: "kicker" }, worst.tool === "OpOverflowCheck" ? t("The first NaN or Inf") : t("Computes wrong results")),
      element("h1", {}, element("span", { class: "guilty" }, Elements.dotted(worst.op))),
      element("p", { class: "lead" }, sentence(worst)),
      worst.reason ? element("p", { class: "reason" }, Words.reason(worst.reason)) : null,
      Elements.definitions([
        [t("module"), worst.module ? element("code", {}, worst.module) : t("outside of modules")],
        [t("line"), element("span", {}, `${place.name} `, element("code", {}, place.text))],
        [t("first seen"), Words.list([t("step {0}, call {1}", worst.step, worst.forward_id), ranks(run, worst)])],
      ]),
      element("p", { class: "actions" },
        address ? element("a", { class: "button", href: address }, t("Look at this call")) : null,
        element("a", { class: "button quiet", href: Address.of(worst.tool === "OpOverflowCheck" ? "nan" : "accuracy") }, t("All that is wrong"))),
      typeNext(run));
  }

  // the watch's first alert: it is what the others follow from
  function alerted(run) {
    const first = run.alerts[0];
    const others = run.alerts.length - 1;
    return element("div", { class: "verdict wrong", role: "region", "aria-label": t("Verdict") },
      element("p", { class: "kicker" }, t("Alert in step {0}", first.step)),
      element("h1", { class: "guilty" }, Words.reason(first.text)),
      Elements.definitions([
        [t("module"), first.module ? element("code", {}, first.module) : null],
        [t("rule"), first.rule],
        [t("more alerts"), others ? Words.count(others) : null],
      ]),
      element("p", { class: "actions" }, element("a", { class: "button", href: Address.of("watch") }, t("Look at the curves"))),
      typeNext(run));
  }

  const commandsOf = (run) => (run.next || []).filter((text) => !text.startsWith("ditorch report")); // that is this page

  function typeNext(run) {
    const [command] = commandsOf(run);
    return command ? [element("p", { class: "then" }, t("Type next:")), Elements.command(command)] : null;
  }

  function ranks(run, row) {
    const all = new Set(run.table.map((process) => process.rank)).size;
    return all > 1 && row.ranks.length ? t("ranks {0}", row.ranks.join(", ")) : "";
  }

  function sentence(worst) {
    if (worst.tool === "OpOverflowCheck") {
      return t("{0}, {1}, in step {2}; {3} of this kind.", Words.reason(worst.what), t(worst.phase), worst.step, Words.calls(worst.calls));
    }
    const share = worst.severity ? t("{0} further off than its dtype allows", Words.fold(worst.severity)) : "";
    return t("Its {0} is wrong in {1}, {2}.", worst.what, Words.calls(worst.calls), share || t("whatever is allowed"));
  }

  function healthy(run) {
    const compared = run.ops.reduce((sum, row) => sum + row.compared, 0);
    const looked = run.tools && run.tools.OpOverflowCheck ? run.tools.OpOverflowCheck.calls : 0;
    const said = [];
    if (compared) said.push(t("{0} were compared with a reference: all are as right as their dtype allows.", Words.calls(compared)));
    if (looked) said.push(t("{0} were looked at: none made NaN or Inf.", Words.calls(looked)));
    if (!said.length) said.push(t("Nothing was checked for errors in this run."));
    const good = compared || looked;
    return element("div", { class: `verdict ${good ? "good" : "plain"}`, role: "region", "aria-label": t("Verdict") },
      element("p", { class: "kicker" }, run.name),
      element("h1", {}, good ? t("Nothing wrong was found") : t("{0} were recorded", Words.calls(run.calls))),
      said.map((text) => element("p", { class: "lead" }, text)),
      good ? null : Elements.command(Elements.again(run, "--autocompare --steps 0:2")));
  }

  function cards(run, waits) {
    const wrong = run.ops.reduce((sum, row) => sum + row.wrong, 0);
    const compared = run.ops.reduce((sum, row) => sum + row.compared, 0);
    const time = run.ops.reduce((sum, row) => sum + row.forward + row.backward, 0);
    const peak = Math.max(0, ...(run.usage || []).map((row) => row.device_memory_peak || row.host_memory_peak || 0));
    const all = [
      run.calls ? [t("calls"), Words.count(run.calls), "calls", ""] : null,
      compared ? [t("wrong calls"), Words.count(wrong), "accuracy", wrong ? "bad" : "good"] : null,
      time ? [t("time in ops"), Words.milliseconds(time), "speed", ""] : null,
      waits ? [t("device idle"), Words.percent(1 - waits.busy / waits.span), "speed", ""] : null,
      run.alerts.length ? [t("alerts"), Words.count(run.alerts.length), "watch", "bad"] : null,
      peak ? [t("memory peak"), Words.bytes(peak), "memory", ""] : null,
      [t("ranks"), Words.count(Math.max(1, run.table.length)), "ranks", ""],
    ];
    return element("ul", { class: "cards" }, all.filter(Boolean).map(([name, value, page, kind]) =>
      element("li", {}, element("a", { href: Address.of(page), class: kind }, element("span", {}, name), element("strong", {}, value)))));
  }

  function wrongOnes(run, list) {
    return Elements.section(t("Wrong, the worst first"), wrongTable(run.wrong.slice(0, MAX_WRONG), run, list),
      run.wrong.length > MAX_WRONG ? element("a", { class: "more", href: Address.of("accuracy") }, t("all {0}", run.wrong.length)) : null);
  }

  function wrongTable(rows, run, list) {
    const open = (place) => { if (list && rows[place].call >= 0) location.hash = Address.of(list.address(rows[place].call)); };
    const only = (name, column) => (rows.some((row) => row[name]) ? [column] : []); // each tool tells something else
    return new Table.SortedTable({
      label: t("Wrong, the worst first"), name: "wrong-", rows: Table.places(rows), open,
      columns: [
        { title: t("op"), value: (place) => rows[place].op, show: (place) => link(rows[place], list) },
        { title: t("what"), value: (place) => rows[place].what, show: (place) => Words.reason(rows[place].what), minor: true },
        ...only("severity", { title: t("off by"), value: (place) => rows[place].severity ?? 0, show: (place) => (rows[place].severity ? Words.times(rows[place].severity) : "–"), numeric: true }),
        ...only("phase", { title: t("phase"), value: (place) => t(rows[place].phase || ""), minor: true }),
        { title: t("calls"), value: (place) => rows[place].calls, show: (place) => Words.count(rows[place].calls), numeric: true, minor: true },
        { title: t("module"), value: (place) => rows[place].module },
        { title: t("line"), value: (place) => rows[place].where, show: (place) => Elements.source(rows[place].where), minor: true },
        ...only("reason", { title: t("why"), value: (place) => Words.reason(rows[place].reason), minor: true }),
      ],
    }).root;
  }

  function link(row, list) {
    const shown = Elements.op(row.op);
    return list && row.call >= 0 ? element("a", { href: Address.of(list.address(row.call)) }, shown) : shown;
  }

  function slowOnes(run) {
    const rows = run.ops.filter((row) => row.forward + row.backward > 0).slice(0, MAX_SLOW);
    const all = run.ops.reduce((sum, row) => sum + row.forward + row.backward, 0);
    if (!rows.length) return null;
    const most = rows[0].forward + rows[0].backward;
    const bars = rows.map((row) => {
      const bar = (time, kind) => element("i", { class: kind, style: { width: `${(100 * time) / most}%` } });
      return element("tr", {},
        element("th", { scope: "row" }, element("a", { href: Address.of("calls", { q: row.op }) }, Elements.op(row.op))),
        element("td", { class: "bar-cell", "aria-hidden": "true" }, element("div", { class: "time-bar" }, bar(row.forward, row.collective ? "collectives" : "forward"), bar(row.backward, "backward"))),
        element("td", { class: "number" }, Words.milliseconds(row.forward + row.backward)),
        element("td", { class: "number" }, Words.percent((row.forward + row.backward) / all)),
        element("td", { class: "number minor" }, Words.count(row.calls)));
    });
    const head = [t("op"), "", t("time"), t("share"), t("calls")].map((text, place) =>
      element(text ? "th" : "td", { scope: text ? "col" : null, class: place > 1 ? (place === 4 ? "number minor" : "number") : null }, text));
    return Elements.section(t("Where the time goes"),
      element("p", { class: "legend" }, element("span", {}, element("i", { class: "forward" }), t("forward")), element("span", {}, element("i", { class: "backward" }), t("backward")),
        rows.some((row) => row.collective) ? element("span", {}, element("i", { class: "collectives" }), t("collectives")) : null),
      element("table", { class: "bars", "aria-label": t("Where the time goes") }, element("thead", {}, element("tr", {}, head)), element("tbody", {}, bars)));
  }

  function notLookedAt(run) {
    const rows = run.not_looked_at || [];
    if (!rows.length) return null;
    return Elements.section(t("Not looked at"), new Table.SortedTable({
      label: t("Not looked at"), name: "left-", wraps: true, rows: Table.places(rows),
      columns: [
        { title: t("what"), value: (place) => rows[place].what },
        { title: t("calls"), value: (place) => rows[place].calls, show: (place) => rows[place].calls || "", numeric: true },
        { title: t("share"), value: (place) => rows[place].share || 0, show: (place) => rows[place].share ? Words.percent(rows[place].share) : "", numeric: true },
        { title: t("why"), value: (place) => rows[place].reason },
        { title: t("tool"), value: (place) => rows[place].tool, minor: true },
      ],
    }).root);
  }

  function next(run) {
    const commands = commandsOf(run).slice(run.wrong.length || run.alerts.length ? 1 : 0); // the verdict has the first
    return commands.length ? Elements.section(t("What to type next"), commands.map(Elements.command)) : null;
  }

  function about(run, index) {
    const devices = new Set((run.processes || []).map((one) => (one.device || {}).name || (one.device || {}).backend).filter(Boolean));
    return Elements.section(t("About this run"), Elements.definitions([
      [t("command"), run.command ? element("code", {}, run.command) : null],
      [t("folder"), run.path],
      [t("device"), [...devices].join(", ")],
      ["torch", run.torch || ((run.processes || [])[0] || {}).torch],
      ["Python", run.python],
      [t("host"), run.host],
      ["git", run.git ? run.git.commit.slice(0, 12) + (run.git.has_changes ? ` ${t("with changes")}` : "") : null],
      [t("started"), run.started ? Words.date(run.started) : null],
      [t("took"), run.ended ? Words.milliseconds(1000 * (run.ended - run.started)) : null],
      [t("ended with"), run.status === null || run.status === undefined ? null : run.status < 0 ? t("signal {0}", -run.status) : t("exit code {0}", run.status)],
      [t("this page"), Words.date(index.made)],
    ]), run.problems.map((text) => element("p", { class: "missing" }, text)));
  }

  return { draw, wrongTable };
})();

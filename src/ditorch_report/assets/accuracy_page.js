"use strict";
// Accuracy: the worst ops, errors against what is allowed, and where in the model they are.
const AccuracyPage = (() => {
  async function draw(run) {
    const [list, heat] = await Promise.all([CallList.of(run), Store.part(run, "heat")]);
    const compared = run.ops.filter((row) => row.compared);
    const title = element("h1", {}, t("Accuracy"));
    const own = ownErrors(run.modules || []);
    if (!compared.length && !run.wrong.length) {
      if (own) return [title, own];
      return [title, Elements.missing(t("No call was compared with a reference in this run."), "--autocompare --steps 0:2", run)];
    }
    return [
      title,
      element("p", { class: "lead" }, said(compared)),
      own,
      heat ? heatMap(heat, list) : null,
      run.wrong.length ? Elements.section(t("Wrong places in the program, the worst first"), OverviewPage.wrongTable(run.wrong, run, list)) : null,
      compared.length ? Elements.section(t("Error against what is allowed, op by op"), opTable(compared)) : null,
    ];
  }

  function said(compared) {
    const calls = compared.reduce((sum, row) => sum + row.compared, 0);
    const wrong = compared.reduce((sum, row) => sum + row.wrong, 0);
    const ops = compared.filter((row) => row.wrong).length;
    if (!wrong) return t("{0} of {1} were compared; all are as right as their dtype allows.", Words.calls(calls), Words.ops(compared.length));
    return t("{0} of {1} compared calls are wrong, all of {2}. An error of 1× is all that the dtype allows.", Words.count(wrong), Words.count(calls), Words.ops(ops));
  }

  // Lockstep: each module was given what it got in the other run, so that its error is its own.
  function ownErrors(rows) {
    if (!rows.length) return null;
    const number = (name, text) => ({ title: text, value: (place) => Number(rows[place][name]), show: (place) => Words.number(Number(rows[place][name])), numeric: true });
    return Elements.section(t("Modules, each given the other run's inputs: its own error"), new Table.SortedTable({
      label: t("Modules, each given the other run's inputs: its own error"), name: "module-", rows: Table.places(rows),
      columns: [
        { title: t("module"), value: (place) => rows[place].layer, show: (place) => element("code", {}, rows[place].layer) },
        { title: t("what"), value: (place) => rows[place].what },
        number("relative_error", t("own error")),
        { ...number("input_error", t("error of its inputs")), minor: true },
        { ...number("cosine_similarity", t("cosine")), minor: true },
        { title: t("verdict"), value: (place) => Number(rows[place].allclose), show: (place) => (rows[place].allclose ? t("close") : element("b", { class: "bad" }, t("not close"))) },
      ],
    }).root);
  }

  function heatMap(heat, list) {
    const open = (place) => { if (list && place >= 0) location.hash = Address.of(list.address(place)); };
    return Elements.section(t("Where in the model"), HeatMap.legend(), HeatMap.draw({
      data: heat, phases: ["forward", "backward"], titles: [t("Forward"), t("Backward")],
      colour: HeatMap.errorColour(), describe: (value) => t("{0} of what is allowed", Words.fold(value)), open,
    }));
  }

  function opTable(rows) {
    const scale = (severity) => Math.max(0, Math.min(1, (Math.log10(Math.max(severity, 1e-3)) + 3) / 6));
    const bar = (place) => {
      const severity = rows[place].severity;
      const mark = element("i", { class: severity > 1 ? "bad" : "good", style: { width: `${100 * scale(severity)}%` } });
      return element("div", { class: "error-bar", title: Words.times(severity) }, mark);
    };
    return new Table.SortedTable({
      label: t("Error against what is allowed, op by op"), name: "op-", rows: Table.places(rows), sort: "-2",
      open: (place) => { location.hash = Address.of("calls", { q: rows[place].op, sort: "-6" }); },
      columns: [
        { title: t("op"), value: (place) => rows[place].op, show: (place) => element("a", { href: Address.of("calls", { q: rows[place].op, sort: "-6" }) }, Elements.op(rows[place].op)) },
        { title: t("worst error"), value: (place) => rows[place].severity, show: (place) => Words.times(rows[place].severity), numeric: true },
        { title: "0.001× … 1× … 1000×", value: (place) => rows[place].severity, show: bar, numeric: true, minor: true, width: "30%" },
        { title: t("wrong"), value: (place) => rows[place].wrong, show: (place) => rows[place].wrong ? element("b", { class: "bad" }, rows[place].wrong) : "0", numeric: true },
        { title: t("compared"), value: (place) => rows[place].compared, numeric: true, minor: true },
      ],
    }).root;
  }

  return { draw };
})();

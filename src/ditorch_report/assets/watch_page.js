"use strict";
// Watch: curves of a long run, of the whole and by module, and what was alerted.
const WatchPage = (() => {
  const MAX_CURVES = 6;
  const FIGURES = [
    ["rms", "root mean square"], ["absmax", "largest absolute value"], ["mean", "mean"], ["zeros", "share of zeros"], ["nonfinite", "NaN and Inf"],
  ];
  const CURVES = [["loss", "Loss"], ["gradient_norm", "Gradient norm"], ["scale", "Scale of GradScaler"]];

  async function draw(run) {
    const watch = await Store.part(run, "watch");
    const title = element("h1", {}, t("Watch"));
    if (!watch) return [title, Elements.missing(t("Nothing watched over this run."), "--watch", run)];
    const steps = watch.processes.reduce((most, one) => Math.max(most, one.step[one.step.length - 1] + 1), 0);
    const alerts = watch.alerts.length;
    return [
      title,
      element("p", { class: "lead" }, said(alerts, Words.count(steps))),
      alerts ? element("p", { class: "reason" }, t("step {0}", watch.alerts[0].step), ": ", Words.reason(watch.alerts[0].text)) : null,
      watch.processes.some((one) => one.sharded) ? element("p", { class: "note" }, t("Parameters are sharded: each rank shows its own part.")) : null,
      alerts ? alertTable(watch.alerts) : null,
      CURVES.map(([name, text]) => curve(watch, name, text)),
      await byModule(run, watch),
    ];
  }

  function said(alerts, steps) {
    if (!alerts) return t("No alert in {0} steps.", steps);
    return alerts === 1 ? t("1 alert in {0} steps.", steps) : t("{0} alerts in {1} steps.", Words.count(alerts), steps);
  }

  function alertTable(rows) {
    return Elements.section(t("Alerts"), new Table.SortedTable({
      label: t("Alerts"), name: "alert-", wraps: true, rows: Table.places(rows),
      columns: [
        { title: t("rule"), value: (place) => rows[place].rule, show: (place) => element("span", { class: "tag bad" }, rows[place].rule) },
        { title: t("step"), value: (place) => rows[place].step, numeric: true },
        { title: t("what"), value: (place) => Words.reason(rows[place].text) },
        { title: t("module"), value: (place) => rows[place].module, minor: true },
        { title: t("rank"), value: (place) => rows[place].rank, numeric: true, minor: true },
      ],
    }).root);
  }

  function curve(watch, name, text) {
    const lines = watch.processes.filter((one) => one[name].some((value) => value !== null))
      .map((one) => ({ label: t("rank {0}", one.rank), x: one.step, y: one[name] }));
    if (!lines.length) return null;
    return Elements.section(t(text), LineChart.overSteps({ lines, show: (value) => Words.number(value, 4), label: t(text), marks: watch.alerts.map((row) => row.step) }));
  }

  // -- by module --------------------------------------------------------------------------------------------------------

  async function byModule(run, watch) {
    const { query } = Address.read();
    const ranks = watch.processes.map((one, place) => [place, t("rank {0}", one.rank)]);
    const state = { process: Math.min(Number(query.get("process") || 0), ranks.length - 1), kind: query.get("kind") || "", figure: query.get("figure") || "rms", words: query.get("q") || "" };
    const kinds = () => Object.keys(watch.processes[state.process].kinds);
    if (!kinds().length) return null;
    const place = element("div", {});
    const update = async () => {
      if (!kinds().includes(state.kind)) state.kind = kinds().includes("gradients") ? "gradients" : kinds()[0];
      const data = await Store.part(run, watch.processes[state.process].kinds[state.kind]);
      Elements.replace(place, data ? shown(data, state) : null);
    };
    const search = element("input", { type: "search", id: "search-modules", placeholder: t("Search modules"), "aria-label": t("Search modules"), value: state.words });
    search.addEventListener("input", () => {
      state.words = search.value;
      Address.set("q", state.words);
      update();
    });
    const choice = (name, label, options) => {
      const made = element("select", { id: `watch-${name}`, "aria-label": label }, options.map(([value, text]) =>
        element("option", { value, selected: String(value) === String(state[name]) }, text)));
      made.addEventListener("change", () => {
        state[name] = made.value;
        Address.set(name, made.value);
        update();
      });
      return made;
    };
    await update();
    return Elements.section(t("By module"),
      element("div", { class: "filters", role: "search" }, search,
        choice("kind", t("what"), kinds().map((name) => [name, t(name)])),
        choice("figure", t("figure"), FIGURES.map(([name, text]) => [name, t(text)])),
        ranks.length > 1 ? choice("process", t("Rank"), ranks) : null),
      place);
  }

  function shown(data, state) {
    const words = state.words.toLowerCase().split(/\s+/).filter(Boolean);
    const found = data.modules.map((_, place) => place).filter((place) => words.every((word) => data.modules[place].toLowerCase().includes(word)));
    const curves = data[state.figure];
    const last = (place) => curves[place].reduce((value, one) => one ?? value, null);
    const most = (place) => curves[place].reduce((value, one) => (one === null ? value : Math.max(value, Math.abs(one))), 0);
    const first = (place) => curves[place].find((value) => value !== null) ?? null;
    const drawn = [...found].sort((a, b) => most(b) - most(a)).slice(0, MAX_CURVES).sort((a, b) => a - b);
    const label = `${t(state.kind)}, ${t(FIGURES.find(([name]) => name === state.figure)[1])}`;
    const lines = drawn.map((place) => ({ label: data.modules[place], x: data.step, y: curves[place] }));
    const numeric = (title, value, minor = false) => ({ title, value: (place) => value(place) ?? -Infinity, show: (place) => Words.number(value(place), 4), numeric: true, minor });
    return [
      element("p", { class: "note", role: "status" }, t("{0} of {1} modules; the curves are those of the largest.", Words.count(found.length), Words.count(data.modules.length))),
      lines.length ? LineChart.overSteps({ lines, show: (value) => Words.number(value, 4), label }) : null,
      element("div", { style: { "margin-top": "14px" } }, new Table.SortedTable({
        label, name: "module-", rows: Int32Array.from(found),
        columns: [
          { title: t("module"), value: (place) => data.modules[place] },
          numeric(t("first"), first), numeric(t("last"), last), numeric(t("largest"), most),
          { title: t("elements"), value: (place) => data.count[place], show: (place) => Words.count(data.count[place]), numeric: true, minor: true },
        ],
      }).root),
    ];
  }

  return { draw };
})();

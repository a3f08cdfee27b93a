"use strict";
// Calls: every op call, to be searched, filtered and sorted.
const CallsPage = (() => {
  async function draw(run) {
    const list = await CallList.of(run);
    const title = element("h1", {}, t("Calls"));
    if (!list) return [title, Elements.missing(t("No calls were recorded one by one in this run."), "--time --steps 2:5", run)];
    const { query } = Address.read();
    const counted = element("p", { class: "note", role: "status" });
    const state = {
      words: query.get("q") || "", verdict: Number(query.get("verdict") ?? -1),
      process: Number(query.get("process") ?? -1), step: Number(query.get("step") ?? -1),
    };
    const table = new Table.SortedTable({ label: t("Calls"), rows: new Int32Array(0), columns: columns(list), open: (place) => { location.hash = Address.of(list.address(place)); } });
    const update = () => {
      const found = list.find(state);
      table.update(found);
      const left = list.all - list.length;
      counted.textContent = t("{0} of {1}", Words.count(found.length), Words.calls(list.length)) +
        (left ? `; ${t("{0} more are in the files of the run", Words.count(left))}` : "");
    };
    update();
    return [title, filters(run, list, state, update), counted, table.root];
  }

  function filters(run, list, state, update) {
    const search = element("input", { type: "search", id: "search", placeholder: t("Search op, module, line  ( / )"), "aria-label": t("Search op, module, line"), value: state.words });
    search.addEventListener("input", () => {
      state.words = search.value;
      Address.set("q", state.words);
      update();
    });
    const choice = (name, label, options) => {
      const made = element("select", { id: `filter-${name}`, "aria-label": label }, options.map(([value, text]) =>
        element("option", { value, selected: Number(value) === state[name] }, text)));
      made.addEventListener("change", () => {
        state[name] = Number(made.value);
        Address.set(name, state[name] < 0 ? "" : state[name]);
        update();
      });
      return made;
    };
    const steps = [...new Set(list.step)].sort((a, b) => a - b).slice(0, 1000);
    return element("div", { class: "filters", role: "search" }, search,
      choice("verdict", t("Verdict"), [[-1, t("any verdict")], [CallList.WRONG, t("wrong")], [CallList.RIGHT, t("right")], [CallList.NOT_COMPARED, t("not compared")]]),
      steps.length > 1 ? choice("step", t("Step"), [[-1, t("all steps")], ...steps.map((step) => [step, t("step {0}", step)])]) : null,
      run.table.length > 1 ? choice("process", t("Rank"), [[-1, t("all ranks")], ...run.table.map((one, place) => [place, t("rank {0}", one.rank)])]) : null);
  }

  function columns(list) {
    const time = (name, title, minor) => ({ title, value: (place) => list[name][place], show: (place) => Words.time(list[name][place]), numeric: true, minor });
    const verdict = (place) => {
      const value = list.verdict[place];
      if (value === CallList.WRONG) return element("span", { class: "tag bad" }, Words.times(list.severity[place]));
      return value === CallList.RIGHT ? element("span", { class: "tag good" }, list.severity[place] ? Words.times(list.severity[place]) : t("right")) : "";
    };
    return [
      { title: t("op"), value: (place) => list.ops[list.op[place]], show: (place) => element("a", { href: Address.of(list.address(place)) }, Elements.op(list.ops[list.op[place]])) },
      { title: t("call"), value: (place) => list.id[place], show: (place) => String(list.id[place]), numeric: true, minor: true },
      { title: t("step"), value: (place) => list.step[place], numeric: true, minor: true },
      time("forward", t("forward"), false),
      time("backward", t("backward"), true),
      { title: t("error"), value: (place) => (list.verdict[place] ? list.severity[place] : -1), show: verdict, numeric: true },
      { title: t("module"), value: (place) => list.modules[list.module[place]], minor: true },
      { title: t("line"), value: (place) => list.wheres[list.where[place]], show: (place) => Elements.source(list.wheres[list.where[place]]), minor: true },
    ];
  }

  return { draw };
})();

"use strict";
// NaN: the first call that made NaN or Inf, and how it went on from there.
const NanPage = (() => {
  async function draw(run) {
    const [list, spread] = await Promise.all([CallList.of(run), Store.part(run, "spread")]);
    const title = element("h1", {}, t("NaN and Inf"));
    const found = run.wrong.filter((row) => row.tool === "OpOverflowCheck");
    const looked = run.tools && run.tools.OpOverflowCheck;
    if (!found.length && !spread) {
      if (!looked) return [title, Elements.missing(t("Nobody looked for NaN and Inf in this run."), "--overflow", run)];
      return [title, element("p", { class: "lead good" }, t("{0} were looked at: none made NaN or Inf.", Words.calls(looked.calls)))];
    }
    return [
      title,
      spread ? first(spread, list) : null,
      spread ? map(spread, list) : null,
      spread ? Elements.section(t("How it spread"), spreadTable(spread, list),
        spread.left_out ? element("p", { class: "note" }, t("{0} later calls are not listed.", Words.count(spread.left_out))) : null) : null,
      found.length ? Elements.section(t("What made NaN or Inf"), OverviewPage.wrongTable(found, run, list)) : null,
    ];
  }

  function first(spread, list) {
    const row = spread.rows[0];
    const place = Words.place(row.where);
    const address = list && row.call >= 0 ? Address.of(list.address(row.call)) : null;
    return element("div", { class: "verdict wrong" },
      element("p", { class: "kicker" }, t("The first one")),
      element("h2", { class: "guilty" }, Elements.dotted(row.name)),
      element("p", { class: "lead" }, Words.list([Words.reason(row.what), t(row.phase), t("step {0}", row.step)])),
      Elements.definitions([
        [t("module"), row.module ? element("code", {}, row.module) : t("outside of modules")],
        [t("line"), element("span", {}, `${place.name} `, element("code", {}, place.text))],
        [t("calls it reached"), Words.count(spread.rows.length + spread.left_out)],
      ]),
      address ? element("p", { class: "actions" }, element("a", { class: "button", href: address }, t("Look at this call"))) : null);
  }

  function map(spread, list) {
    if (spread.modules.cells.length < 2) return null;
    const open = (place) => { if (list && place >= 0) location.hash = Address.of(list.address(place)); };
    return Elements.section(t("Where it went"), element("p", {}, t("The stronger the colour, the earlier it was there.")), HeatMap.draw({
      data: spread.modules, phases: ["forward", "backward"], titles: [t("Forward"), t("Backward")],
      colour: HeatMap.orderColour(), describe: (value) => t("reached as number {0}", Math.round(1 / value)), open,
    }));
  }

  function spreadTable(spread, list) {
    const rows = spread.rows;
    const role = (place) => ({ made: t("made it"), carried: t("carried it on"), "came in": t("was given it") })[rows[place].role] || rows[place].role;
    return new Table.SortedTable({
      label: t("How it spread"), name: "spread-", rows: Table.places(rows),
      open: (place) => { if (list && rows[place].call >= 0) location.hash = Address.of(list.address(rows[place].call)); },
      columns: [
        { title: "#", value: (place) => rows[place].order, numeric: true },
        { title: t("op"), value: (place) => rows[place].name, show: (place) => Elements.op(rows[place].name) },
        { title: t("role"), value: role, show: (place) => element("span", { class: rows[place].role === "made" ? "bad" : "" }, role(place)) },
        { title: t("phase"), value: (place) => t(rows[place].phase), minor: true },
        { title: t("step"), value: (place) => rows[place].step, numeric: true, minor: true },
        { title: t("module"), value: (place) => rows[place].module },
        { title: t("line"), value: (place) => rows[place].where, show: (place) => Elements.source(rows[place].where), minor: true },
      ],
    }).root;
  }

  return { draw };
})();

"use strict";
// Conformance: which ops pass PyTorch's own tests on the device, dtype by dtype; causes; cases that did not pass.
const ConformancePage = (() => {
  async function draw(run, index) {
    const title = element("h1", {}, t("Conformance"));
    if (!index.conformance.length) {
      return [title, Elements.missing(t("Give the folder of `ditorch conformance run` to `ditorch report`, too."))];
    }
    const all = await Promise.all(index.conformance.map((name) => Store.get(name)));
    return [title, all.map(one)];
  }

  function one(found, place) {
    const statuses = Object.entries(found.statuses).map(([name, count]) => `${Words.count(count)} ${t(name)}`);
    return [
      element("p", { class: "lead" }, `${found.title}: ${Words.list(statuses)}`),
      found.matrix.length ? matrix(found, place) : null,
      found.causes.length ? causes(found.causes, place) : null,
      found.failed.length ? failed(found.failed, place) : null,
    ];
  }

  function matrix(found, place) {
    const rows = found.matrix;
    const search = element("input", { type: "search", "aria-label": t("Search ops"), placeholder: t("Search ops") });
    const cell = (dtype) => (number) => {
      const counted = rows[number][1][dtype];
      if (!counted) return element("span", { class: "off" }, "–");
      const kind = counted[0] === counted[1] ? "good" : counted[0] ? "part" : "bad";
      return element("span", { class: `tag ${kind}` }, `${counted[0]}/${counted[1]}`);
    };
    const share = (dtype) => (number) => (rows[number][1][dtype] ? rows[number][1][dtype][0] / rows[number][1][dtype][1] : 2);
    const table = new Table.SortedTable({
      label: t("Ops and dtypes: passed of run"), name: `matrix${place}-`, rows: Table.places(rows), wraps: true,
      columns: [
        { title: t("op"), value: (number) => rows[number][0], width: "16em" },
        ...found.dtypes.map((dtype) => ({ title: dtype, value: share(dtype), show: cell(dtype), numeric: true, width: "6.5em" })),
      ],
    });
    table.root.classList.add("wide");
    search.addEventListener("input", () => {
      const word = search.value.toLowerCase();
      table.update(Int32Array.from(rows.keys()).filter((number) => rows[number][0].toLowerCase().includes(word)));
    });
    return Elements.section(t("Ops and dtypes: passed of run"), element("div", { class: "filters" }, search), table.root);
  }

  function causes(rows, place) {
    return Elements.section(t("Causes"), new Table.SortedTable({
      label: t("Causes"), name: `cause${place}-`, rows: Table.places(rows), wraps: true,
      columns: [
        { title: t("cases"), value: (number) => rows[number].cases, numeric: true },
        { title: t("kind"), value: (number) => t(rows[number].kind) },
        { title: t("message"), value: (number) => Words.reason(rows[number].message) },
        { title: t("smallest reproducer"), value: (number) => rows[number].reproducer, show: (number) => element("code", {}, rows[number].reproducer), minor: true },
      ],
    }).root);
  }

  function failed(rows, place) {
    const titles = [t("case"), t("status"), t("kind"), t("message"), t("where")];
    const text = (number, column) => (column === 3 ? Words.reason(rows[number][3]) : column === 1 || column === 2 ? t(rows[number][column]) : rows[number][column]);
    return Elements.section(t("Cases that did not pass"), new Table.SortedTable({
      label: t("Cases that did not pass"), name: `case${place}-`, rows: Table.places(rows), wraps: true,
      columns: titles.map((title, column) => ({ title, value: (number) => text(number, column), minor: column > 1 }))
        .filter((_, column) => rows.some((row) => row[column] && (column !== 2 || row[2] !== row[1]))),
    }).root);
  }

  return { draw };
})();

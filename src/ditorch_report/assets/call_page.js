"use strict";
// The page of one call: its arguments, its line in the program, what was compared, and how to run it again.
const CallPage = (() => {
  async function draw(run, index, item) {
    const list = await CallList.of(run);
    const [process, id] = item.split("-").map(Number);
    const place = list ? list.place(process, id) : -1;
    if (place < 0) return [element("h1", {}, t("Call")), Elements.missing(t("This file has no such call."))];
    const [texts, details, captures, sources] = await Promise.all(
      [Store.part(run, "texts"), list.details(place), Store.part(run, "captures"), Store.part(run, "sources")]);
    const name = list.ops[list.op[place]];
    const where = list.wheres[list.where[place]];
    const capture = (captures || {})[place];
    return [
      neighbours(list, place),
      element("h1", { class: list.verdict[place] === CallList.WRONG ? "guilty" : null }, Elements.dotted(name)),
      facts(run, list, place, where),
      Elements.section(t("In the program"), code(where, (sources || {})[where])),
      details.values.length ? Elements.section(t("Compared with the reference"), compared(details.values, texts.whats)) : null,
      histograms(capture, details.values.map((value) => texts.whats[value[0]] || "")),
      Elements.section(t("Arguments and results"), described(t("argument"), texts.texts[list.arguments[place]]), described(t("result"), texts.texts[list.results[place]]), empty(texts, list, place)),
      details.statistics.length ? Elements.section(t("Statistics of its tensors"), statistics(details.statistics)) : null,
      Elements.section(t("Run it again"), commands(run, list, place, capture)),
    ];
  }

  function neighbours(list, place) {
    const to = (other, text, key) => (other >= 0 && other < list.length
      ? element("a", { href: Address.of(list.address(other)), "data-key": key, class: "quiet" }, text) : element("span", { class: "off" }, text));
    return element("p", { class: "neighbours" }, to(place - 1, `← ${t("call before")}`, "["), to(place + 1, `${t("call after")} →`, "]"));
  }

  function facts(run, list, place, where) {
    const module = list.modules[list.module[place]];
    const process = run.table[list.process[place]] || {};
    const verdict = { [CallList.WRONG]: t("wrong"), [CallList.RIGHT]: t("right"), [CallList.NOT_COMPARED]: t("not compared") }[list.verdict[place]];
    const severity = list.verdict[place] ? `: ${t("{0} of what is allowed", Words.fold(list.severity[place]))}` : "";
    return Elements.definitions([
      [t("verdict"), element("span", { class: { 1: "good", 2: "bad" }[list.verdict[place]] || null }, verdict + severity)],
      [t("module"), element("code", {}, module || t("outside of modules"))],
      [t("line"), Words.place(where).name],
      [t("step"), list.step[place]],
      [t("call"), list.id[place]],
      [t("rank"), `${process.rank} (pid ${process.pid}, ${process.host})`],
      [t("forward"), list.forward[place] < 0 ? null : Words.time(list.forward[place])],
      [t("backward"), list.backward[place] < 0 ? null : Words.time(list.backward[place])],
    ]);
  }

  function code(where, context) {
    const at = Words.place(where);
    if (!context) return element("div", { class: "code" }, element("pre", {}, element("code", {}, at.text || where)), element("p", { class: "note" }, at.file));
    const [first, lines] = context;
    const rows = lines.map((text, place) => {
      const number = first + place;
      const here = number === at.line;
      return element("tr", { class: here ? "here" : null, "aria-current": here ? "true" : null },
        element("td", { class: "number" }, number), element("td", {}, element("code", {}, text)));
    });
    return element("div", { class: "code", tabindex: 0, role: "group", "aria-label": t("In the program") },
      element("table", {}, element("tbody", {}, rows)), element("p", { class: "note" }, `${at.file}:${at.line} ${at.function}`));
  }

  function compared(values, whats) {
    const verdict = ["–", t("right"), t("wrong")];
    const reasons = values.filter((value) => value[5] && value[5].reason);
    const rows = Table.places(values);
    const extra = (place, name) => (values[place][5] || {})[name] || "";
    const table = new Table.SortedTable({
      label: t("Compared with the reference"), name: "value-", rows,
      columns: [
        { title: t("what"), value: (place) => whats[values[place][0]] || t("result") },
        { title: t("verdict"), value: (place) => verdict[values[place][1]], show: (place) => element("span", { class: { 1: "good", 2: "bad" }[values[place][1]] || null }, verdict[values[place][1]]) },
        { title: t("error"), value: (place) => values[place][2] ?? 0, show: (place) => (values[place][1] ? Words.times(values[place][2] ?? 0) : "–"), numeric: true },
        { title: t("largest difference"), value: (place) => values[place][3] ?? 0, show: (place) => Words.number(values[place][3]), numeric: true, minor: true },
        { title: t("relative"), value: (place) => values[place][4] ?? 0, show: (place) => Words.number(values[place][4]), numeric: true, minor: true },
        { title: t("cosine"), value: (place) => Number(extra(place, "cosine_similarity")), show: (place) => (extra(place, "cosine_similarity") ? Words.number(Number(extra(place, "cosine_similarity")), 4) : ""), numeric: true, minor: true },
        { title: t("wrong elements"), value: (place) => Number(extra(place, "bad_share")), show: (place) => (extra(place, "bad_share") ? Words.percent(Number(extra(place, "bad_share"))) : ""), numeric: true, minor: true },
      ],
    });
    return [table.root, reasons.length ? element("ul", { class: "reasons" }, reasons.map((value) =>
      element("li", {}, element("b", {}, `${whats[value[0]]}: `), Words.reason(value[5].reason)))) : null];
  }

  function histograms(capture, compared) {
    if (!capture || !capture.values.length) return null;
    const names = namesOf(capture.values.map((value) => value.what), compared);
    return Elements.section(t("Device against reference"), element("div", { class: "histograms" }, capture.values.map((value, place) =>
      element("div", {},
        element("h3", {}, names[place]),
        LineChart.histogram({ edges: value.edges, device: value.device.counts, reference: value.reference.counts, label: t("Histogram of {0}: device and reference", names[place]) }),
        sideBySide(value, names[place])))));
  }

  // What the capture counts as grad_inputs[1], the comparison calls grad weight: as it does, where there are as many.
  function namesOf(whats, compared) {
    const gradients = compared.filter((what) => what.startsWith("grad"));
    const isGradient = (what) => what.startsWith("grad_inputs");
    if (whats.filter(isGradient).length !== gradients.length) return whats;
    return whats.map((what) => (isGradient(what) ? gradients.shift() : what));
  }

  function sideBySide(value, name) {
    const names = ["min", "max", "mean", "std", "nan", "inf"]
      .filter((name) => !["nan", "inf"].includes(name) || value.device[name] || value.reference[name]);
    const row = (title, numbers) => element("tr", {}, element("th", { scope: "row" }, title), names.map((name) => element("td", { class: "number" }, Words.number(numbers[name]))));
    return element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": name }, element("table", { class: "small" },
      element("thead", {}, element("tr", {}, element("td", {}), names.map((name) => element("th", { scope: "col", class: "number" }, name)))),
      element("tbody", {}, row(t("device"), value.device), row(t("reference"), value.reference))));
  }

  // what the tools wrote of arguments: a row for each tensor and value
  function described(title, text) {
    if (!text) return null;
    let rows;
    try {
      const found = JSON.parse(text);
      rows = "args" in found ? [...leaves(found.args, ""), ...leaves(found.kwargs, "")] : [...leaves(found, "")];
    } catch {
      return [element("h3", {}, title), element("pre", { class: "json", tabindex: 0 }, text)];
    }
    const column = (name, minor) => ({ title: t(name), value: (place) => rows[place][name] || "", minor });
    const table = new Table.SortedTable({
      label: title, name: `${title}-`, rows: Table.places(rows),
      columns: [{ title, value: (place) => rows[place].name }, column("shape"), column("dtype"), column("stride", true), column("value")],
    });
    return element("div", { class: "spaced" }, table.root);
  }

  function* leaves(value, name) {
    if (value !== null && typeof value === "object" && "dtype" in value) {
      const shape = value.shape ? `[${value.shape.join(", ")}]` : "";
      yield { name: name || t("result"), shape, dtype: value.dtype, stride: value.stride ? `[${value.stride.join(", ")}]` : "" };
    } else if (Array.isArray(value) && value.some((one) => one !== null && typeof one === "object")) {
      for (const [place, one] of value.entries()) yield* leaves(one, `${name}[${place}]`);
    } else if (value !== null && typeof value === "object" && !Array.isArray(value)) {
      for (const [key, one] of Object.entries(value)) yield* leaves(one, name ? `${name}.${key}` : key);
    } else if (Array.isArray(value) && name === "") {
      for (const [place, one] of value.entries()) yield* leaves(one, `[${place}]`);
    } else yield { name: name || t("result"), value: JSON.stringify(value) };
  }

  function empty(texts, list, place) {
    if (texts.texts[list.arguments[place]] || texts.texts[list.results[place]]) return null;
    return element("p", { class: "note" }, t("Arguments are recorded with --time, tensors with --capture."));
  }

  function statistics(rows) {
    const names = ["min", "max", "mean", "std", "norm"];
    return new Table.SortedTable({
      label: t("Statistics of its tensors"), name: "tensor-", rows: Table.places(rows),
      columns: [
        { title: t("what"), value: (place) => rows[place][0] },
        { title: t("shape"), value: (place) => `[${rows[place][1].join(", ")}]` },
        { title: "dtype", value: (place) => rows[place][2], minor: true },
        { title: "NaN", value: (place) => rows[place][3], numeric: true, minor: true },
        { title: "Inf", value: (place) => rows[place][4], numeric: true, minor: true },
        ...names.map((title, number) => ({ title, value: (place) => rows[place][5 + number] ?? NaN, show: (place) => Words.number(rows[place][5 + number]), numeric: true, minor: number !== 2 && number !== 4 })),
      ],
    }).root;
  }

  function commands(run, list, place, capture) {
    if (capture) {
      const folder = Words.quoted(capture.folder);
      return [element("p", {}, t("On the device, compared with the CPU:")), Elements.command(`ditorch replay ${folder} --acc_check`),
        element("p", {}, t("As a small script for the vendor, which needs torch only:")), Elements.command(`ditorch reproduce ${folder} --shrink`)];
    }
    const step = list.step[place];
    const again = Elements.again(run, `--capture --ops ${Words.quoted(list.ops[list.op[place]])} --steps ${step}:${step + 1}`);
    return [element("p", {}, t("Its tensors were not saved. This saves them, for ditorch replay and ditorch reproduce:")), Elements.command(again)];
  }

  return { draw };
})();

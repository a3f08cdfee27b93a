"use strict";
// Speed: where the time goes, by module and op; when each call ran; what the device waited for.
const SpeedPage = (() => {
  async function draw(run) {
    const [list, flame, trace, waits, memory] = await Promise.all(
      [CallList.of(run), ...["flame", "trace", "waits", "memory"].map((name) => Store.part(run, name))]);
    const title = element("h1", {}, t("Speed"));
    if (!flame) return [title, Elements.missing(t("No times were measured in this run."), "--time --steps 2:5", run)];
    const parts = Object.fromEntries((flame.inner || []).map((one) => [one.name, one.time]));
    const said = ["forward", "backward", "collectives"].filter((name) => parts[name]).map((name) => `${t(name)} ${Words.milliseconds(parts[name])}`);
    return [
      title,
      element("p", { class: "lead" }, `${t("Time in ops")}: ${Words.milliseconds(flame.time)} (${Words.list(said)}).`),
      Elements.section(t("By module and op"),
        element("p", { class: "legend" }, ["forward", "backward", "collectives"].map((name) => element("span", {}, element("i", { class: name }), t(name)))),
        FlameGraph.draw(flame)),
      waits ? waited(waits) : null,
      trace && trace.tracks.length ? timeLine(trace, list, memory, run) : null,
      Elements.section(t("Op by op"), opTable(run)),
    ];
  }

  function timeLine(trace, list, memory, run) {
    const line = TimeLine.draw(trace, list, run);
    const left = trace.tracks.reduce((sum, track) => sum + track.left_out, 0);
    return Elements.section(t("Time line"), line.element,
      left ? element("p", { class: "note" }, t("{0} later events are not drawn; the trace file in the run's folder has them.", Words.count(left))) : null,
      memory && trace.wall_zero !== null ? MemoryPage.under(memory, trace.wall_zero, line, run) : null);
  }

  function waited(waits) {
    const idle = waits.span - waits.busy;
    const rows = waits.rows;
    const why = (row) => {
      if (row.cause === "collective") return t("a collective: {0}", Words.shortOp(row.during));
      if (row.cause === "queue") return t("something else on the device: a copy, another stream");
      return row.during ? t("the host, which was in {0}", Words.shortOp(row.during)) : t("the host, between two ops");
    };
    return Elements.section(t("What the device waited for"),
      element("p", {}, t("The device was idle for {0} of {1} ({2}).", Words.milliseconds(idle), Words.milliseconds(waits.span), Words.percent(idle / waits.span)),
        " ", t("Between two ops the host is in Python: data loading, logging, other tools. Tools that compare make it slow: measure with --time alone.")),
      rows.length ? new Table.SortedTable({
        label: t("What the device waited for"), name: "wait-", rows: Table.places(rows),
        columns: [
          { title: t("before the op"), value: (place) => rows[place].op, show: (place) => Elements.op(rows[place].op) },
          { title: t("idle"), value: (place) => rows[place].time, show: (place) => Words.milliseconds(rows[place].time), numeric: true },
          { title: t("times"), value: (place) => rows[place].times, numeric: true, minor: true },
          { title: t("it waited for"), value: (place) => why(rows[place]) },
          { title: t("module"), value: (place) => rows[place].module, minor: true },
        ],
      }).root : null);
  }

  function opTable(run) {
    const rows = run.ops.filter((row) => row.forward + row.backward > 0);
    const all = rows.reduce((sum, row) => sum + row.forward + row.backward, 0);
    const total = (place) => rows[place].forward + rows[place].backward;
    return new Table.SortedTable({
      label: t("Op by op"), name: "op-", rows: Table.places(rows),
      open: (place) => { location.hash = Address.of("calls", { q: rows[place].op, sort: "-4" }); },
      columns: [
        { title: t("op"), value: (place) => rows[place].op, show: (place) => element("a", { href: Address.of("calls", { q: rows[place].op, sort: "-4" }) }, Elements.op(rows[place].op)) },
        { title: t("time"), value: total, show: (place) => Words.milliseconds(total(place)), numeric: true },
        { title: t("share"), value: total, show: (place) => Words.percent(total(place) / all), numeric: true },
        { title: t("forward"), value: (place) => rows[place].forward, show: (place) => Words.milliseconds(rows[place].forward), numeric: true, minor: true },
        { title: t("backward"), value: (place) => rows[place].backward, show: (place) => Words.milliseconds(rows[place].backward), numeric: true, minor: true },
        { title: t("calls"), value: (place) => rows[place].calls, show: (place) => Words.count(rows[place].calls), numeric: true },
        { title: t("each"), value: (place) => total(place) / rows[place].calls, show: (place) => Words.time(1000 * total(place) / rows[place].calls), numeric: true, minor: true },
      ],
    }).root;
  }

  return { draw };
})();

"use strict";
// LineChart: figures over time, and histograms, drawn by uPlot.
const LineChart = (() => {
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const palette = () => ["--forward", "--collectives", "--good", "--backward", "--bad", "--accent"].map(style);

  const NARROW = "(max-width: 860px)"; // as in report.css: there the time line has no names beside it

  const WHOLE = [...Array(10).keys()].flatMap((power) => [1, 2, 5].map((one) => one * 10 ** power)); // between ticks on steps

  const axis = (more = {}) => ({ stroke: style("--muted"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") }, ...more });

  // lines: [{label, x: [], y: []}], each with its own x; x in seconds
  // `follow`: a time line that it lies under, whose zoom it shares
  function overTime({ lines, show, label, from = 0, follow = null }) {
    return chartOf({ lines, show, label, from, follow, name: t("time"), showX: (value) => Words.milliseconds(value * 1000) });
  }

  function chartOf({ lines, show, label, name, showX, from = 0, follow = null, plugins = [], ticks = {} }) {
    const moments = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    const columns = lines.map((line) => {
      const known = new Map(line.x.map((moment, place) => [moment, line.y[place]]));
      return moments.map((moment) => known.get(moment) ?? null);
    });
    const colours = palette();
    const options = {
      height: 220,
      plugins,
      scales: { x: { time: false } },
      padding: follow ? [8, 0, 0, 0] : [8, 16, 0, 0],
      axes: [axis({ space: 80, ...ticks, values: (_, ticks) => ticks.map(showX) }), axis({ size: follow && !matchMedia(NARROW).matches ? 135 : 70, values: (_, ticks) => ticks.map(show) })],
      series: [
        { label: name, value: (_, value) => (value === null ? "–" : showX(value)) },
        ...lines.map((line, place) => ({
          label: line.label, stroke: colours[place % colours.length], width: 1.6, spanGaps: true,
          points: { show: moments.length < 40 }, value: (_, value) => (value === null ? "–" : show(value)),
        })),
      ],
    };
    const zoom = follow && ((chart) => {
      const show = ([first, last]) => chart.setScale("x", { min: first / 1e6, max: last / 1e6 });
      follow.listeners.push(show);
      show(follow.scale ? follow.scale.domain() : [0, follow.end]);
    });
    return mounted(options, [moments.map((moment) => moment - from), ...columns], label, zoom);
  }

  // figures of training steps; `marks`: steps that have a line of their own
  function overSteps({ lines, show, label, marks = [] }) {
    return chartOf({ lines, show, label, name: t("step"), showX: (value) => Words.count(value), ticks: { incrs: WHOLE }, plugins: marks.length ? [marked(marks)] : [] });
  }

  function marked(steps) {
    return { hooks: { draw: [(chart) => {
      const paint = chart.ctx;
      paint.save();
      paint.strokeStyle = style("--bad");
      paint.setLineDash([4, 4]);
      for (const step of steps) {
        const left = chart.valToPos(step, "x", true);
        if (left < chart.bbox.left || left > chart.bbox.left + chart.bbox.width) continue;
        paint.beginPath();
        paint.moveTo(left, chart.bbox.top);
        paint.lineTo(left, chart.bbox.top + chart.bbox.height);
        paint.stroke();
      }
      paint.restore();
    }] } };
  }

  // two histograms over the same bins
  function histogram({ edges, device, reference, label }) {
    const middles = device.map((_, place) => (edges[place] + edges[place + 1]) / 2);
    const bars = uPlot.paths.bars({ size: [0.9, 60] });
    const stepped = uPlot.paths.stepped({ align: 1 });
    const options = {
      height: 200,
      scales: { x: { time: false } },
      axes: [axis({ values: (_, ticks) => ticks.map((tick) => Words.number(tick)) }), axis({ size: 60, values: (_, ticks) => ticks.map((tick) => Words.number(tick)) })],
      series: [
        { label: t("value"), value: (_, value) => Words.number(value) },
        { label: t("reference"), fill: `${style("--muted")}44`, stroke: style("--muted"), paths: bars, points: { show: false } },
        { label: t("device"), stroke: style("--bad"), width: 2, paths: stepped, points: { show: false } },
      ],
    };
    return mounted(options, [middles, reference, device], label);
  }

  function mounted(options, data, label, whenMade = null) {
    const place = element("figure", { class: whenMade ? "chart under" : "chart", role: "img", "aria-label": label });
    let chart = null;
    new ResizeObserver(() => {
      const width = place.clientWidth;
      if (!width) return;
      if (chart) chart.setSize({ width, height: options.height });
      else {
        chart = new uPlot({ ...options, width }, data, place);
        if (whenMade) whenMade(chart);
      }
    }).observe(place);
    return place;
  }

  return { overTime, overSteps, histogram };
})();

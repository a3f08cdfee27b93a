"use strict";
// Memory over time, and how busy host and device were, of every process.
const MemoryPage = (() => {
  const FIGURES = [
    ["device_memory", "Device memory of tensors", (value) => Words.bytes(value)],
    ["device_reserved", "Device memory that the allocator holds", (value) => Words.bytes(value)],
    ["host_memory", "Host memory", (value) => Words.bytes(value)],
    ["cpu", "CPU, per cent of a core", (value) => Words.number(value)],
    ["device_busy", "Device busy, per cent", (value) => Words.number(value)],
    ["temperature", "Device temperature, °C", (value) => Words.number(value)],
  ];

  async function draw(run) {
    const memory = await Store.part(run, "memory");
    const title = element("h1", {}, t("Memory"));
    if (!memory) return [title, Elements.missing(t("Memory was not sampled in this run."), "--monitor", run)];
    const from = Math.min(...memory.map((one) => one.time[0]));
    const charts = FIGURES.map(([name, text, show]) => {
      const lines = lined(memory, name, run);
      return lines.length ? Elements.section(t(text), LineChart.overTime({ lines, show, from, label: t(text) })) : null;
    });
    return [title, usageTable(run), charts];
  }

  function lined(memory, name, run) {
    const known = memory.filter((one) => (one[name] || []).some((value) => value !== null));
    if (name === "device_reserved" && known.every((one) => String(one[name]) === String(one.device_memory))) return [];
    return known.map((one) => ({ label: named(one, run), x: one.time, y: one[name] }));
  }

  // a launcher is a process without a rank of its own
  function named(one, run) {
    const trains = !run.table.length || run.table.some((process) => process.pid === one.pid && process.host === one.host);
    return trains ? t("rank {0}", one.rank) : `${t("launcher")}, pid ${one.pid}`;
  }

  // the parts of it that lie under a time line
  function under(memory, from, line, run) {
    const seconds = line.end / 1e6;
    const within = memory.map((one) => {
      const places = one.time.map((_, place) => place).filter((place) => one.time[place] >= from - 2 && one.time[place] <= from + seconds + 2);
      const part = Object.fromEntries(FIGURES.filter(([name]) => one[name]).map(([name]) => [name, places.map((place) => one[name][place])]));
      return { ...one, ...part, time: places.map((place) => one.time[place]) };
    });
    return FIGURES.map(([name, text, show]) => {
      const lines = lined(within, name, run);
      return lines.length ? [element("h3", {}, t(text)), LineChart.overTime({ lines, show, from, label: t(text), follow: line })] : null;
    });
  }

  function usageTable(run) {
    const rows = run.usage || [];
    if (!rows.length) return null;
    return Elements.section(t("The most that was used"), new Table.SortedTable({
      label: t("The most that was used"), name: "use-", rows: Table.places(rows),
      columns: [
        { title: t("rank"), value: (place) => rows[place].rank, numeric: true },
        { title: "pid", value: (place) => rows[place].pid, show: (place) => String(rows[place].pid), numeric: true, minor: true },
        { title: t("host memory"), value: (place) => rows[place].host_memory_peak ?? 0, show: (place) => Words.bytes(rows[place].host_memory_peak), numeric: true },
        { title: t("device memory"), value: (place) => rows[place].device_memory_peak ?? 0, show: (place) => Words.bytes(rows[place].device_memory_peak), numeric: true },
        { title: t("allocator"), value: (place) => rows[place].device_memory_reserved_peak ?? 0, show: (place) => Words.bytes(rows[place].device_memory_reserved_peak), numeric: true, minor: true },
        { title: "CPU", value: (place) => rows[place].cpu_percent, show: (place) => `${Words.number(rows[place].cpu_percent)} %`, numeric: true },
        { title: t("took"), value: (place) => rows[place].seconds, show: (place) => Words.milliseconds(1000 * rows[place].seconds), numeric: true, minor: true },
      ],
    }).root);
  }

  return { draw, under };
})();

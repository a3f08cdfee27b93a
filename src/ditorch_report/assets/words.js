"use strict";
// Words: the page's texts in the reader's language, and numbers as people read them.
// English texts are their own keys; chinese.js has the others. What the tools wrote stays as it is.
const Words = (() => {
  let language = "en";

  function t(english, ...values) {
    const text = language === "zh" ? CHINESE[english] ?? english : english;
    return text.replace(/\{(\d)\}/g, (_, place) => String(values[place]));
  }

  function use(chosen) {
    language = chosen === "zh" ? "zh" : "en";
    document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  }

  const HUGE = 1e299;

  function number(value, digits = 3) {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    if (Math.abs(value) > HUGE) return value > 0 ? "∞" : "−∞";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(digits - 1).replace("e+", "e");
    return Number.isInteger(value) ? count(value) : String(Number(value.toPrecision(digits)));
  }

  const count = (value) => value.toLocaleString(language === "zh" ? "zh-CN" : "en-US");

  function time(microseconds) {
    if (microseconds < 0) return "–";
    if (microseconds < 1000) return `${number(microseconds)} µs`;
    return milliseconds(microseconds / 1000);
  }

  function milliseconds(value) {
    if (value >= 60000) return `${number(value / 60000)} min`;
    return value >= 1000 ? `${number(value / 1000)} s` : `${number(value)} ms`;
  }

  function bytes(value) {
    if (value === null || value === undefined) return "–";
    for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
      if (value >= size) return `${number(value / size)} ${unit}`;
    }
    return `${value} B`;
  }

  const percent = (share) => `${number(100 * share, 3)} %`;
  const times = (value) => (value > HUGE ? "∞×" : `${value >= 1000 && value < 1e9 ? count(Math.round(value)) : number(value)}×`);
  // the same within a sentence
  const fold = (value) => (language === "zh" ? `${times(value).slice(0, -1) || "∞"} 倍` : times(value));
  const list = (texts) => texts.filter(Boolean).join(language === "zh" ? "，" : ", ");
  const date = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleString(language === "zh" ? "zh-CN" : "en-GB") : "–");
  const calls = (value) => (value === 1 ? t("1 call") : t("{0} calls", count(value)));

  const ops = (value) => (value === 1 ? t("1 op") : t("{0} ops", count(value)));

  // as a word of a command
  const quoted = (text) => (/^[\w./:@%+=,-]+$/.test(text) ? text : `'${text.replace(/'/g, "'\\''")}'`);

  // what a tool wrote, as far as its pattern is known
  function reason(text) {
    if (language !== "zh" || !text) return text || "";
    return CHINESE_REASONS.reduce((said, [pattern, chinese]) => said.replace(pattern, chinese), text);
  }

  // torch.nn.functional.linear is known as linear
  const shortOp = (name) => name.split(".").pop();

  // /home/me/train.py:26 forward: return x is train.py:26
  function place(where) {
    const found = /^(.*?):(\d+) ([^:]*): ?([^]*)$/.exec(where);
    if (!found) return { file: where, line: 0, name: where, function: "", text: "" };
    const file = found[1];
    return { file, line: Number(found[2]), name: `${file.split("/").pop()}:${found[2]}`, function: found[3], text: found[4] };
  }

  return {
    t, use, number, count, time, milliseconds, bytes, percent, times, fold, list, date, calls, ops, reason, shortOp, place, quoted,
    get language() { return language; },
  };
})();
const t = Words.t;

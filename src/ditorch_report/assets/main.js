"use strict";
// Puts the page together: navigation, language, theme, keyboard; a live page asks for new data.
(() => {
  const PAGES = [
    ["overview", "Overview", OverviewPage, () => true],
    ["accuracy", "Accuracy", AccuracyPage, (run) => run && (run.pieces.heat || run.wrong.length)],
    ["speed", "Speed", SpeedPage, (run) => run && run.pieces.flame],
    ["nan", "NaN", NanPage, (run) => run && (run.pieces.spread || (run.tools || {}).OpOverflowCheck)],
    ["memory", "Memory", MemoryPage, (run) => run && run.pieces.memory],
    ["watch", "Watch", WatchPage, (run) => run && run.pieces.watch],
    ["calls", "Calls", CallsPage, (run) => run && run.pieces.calls],
    ["ranks", "Ranks", RanksPage, (run) => run && run.table.length],
    ["comparison", "Comparison", ComparisonPage, (run, index) => index.comparison || index.runs.length > 1],
    ["conformance", "Conformance", ConformancePage, (run, index) => index.conformance.length],
  ];
  const OTHERS = { call: CallPage };
  const NEED_NO_RUN = new Set(["overview", "comparison", "conformance"]);
  const SECONDS_BETWEEN = 2;
  const content = document.getElementById("content");
  let index = null;
  let drawn = 0;

  const remembered = {
    get(name) { try { return localStorage.getItem(`ditorch-report-${name}`); } catch { return null; } },
    set(name, value) { try { localStorage.setItem(`ditorch-report-${name}`, value); } catch { /* a browser that keeps nothing */ } },
  };

  // -- drawing --------------------------------------------------------------------------------------------------------

  const currentRun = () => index.runs[Math.min(Number(Address.read().query.get("run") || 0), index.runs.length - 1)];

  async function draw({ keep = false } = {}) {
    const ticket = ++drawn;
    const { page, item } = Address.read();
    const run = currentRun();
    const chosen = (PAGES.find(([name]) => name === page) || [])[2] || OTHERS[page] || OverviewPage;
    let parts;
    if (!run && !NEED_NO_RUN.has(page)) parts = [element("h1", {}, t("Results")), Elements.missing(t("This file has no run, only results of other commands."))];
    else parts = await chosen.draw(run, index, item);
    if (ticket !== drawn) return; // the reader has gone on
    const isFirst = !content.dataset.page;
    const kept = keep ? { top: scrollY, rows: scrolls(), focus: document.activeElement.id } : null;
    Elements.replace(content, ...parts);
    content.dataset.page = page;
    frame(run, page);
    if (kept) restore(kept);
    else {
      scrollTo(0, 0);
      if (!isFirst) content.focus({ preventScroll: true }); // the link that was followed is no more
    }
    document.body.dataset.ready = `${page}/${item}`;
  }

  const scrolls = () => [...content.querySelectorAll(".rows")].map((one) => one.scrollTop);

  function restore({ top, rows, focus }) {
    content.querySelectorAll(".rows").forEach((one, place) => { one.scrollTop = rows[place] || 0; });
    scrollTo(0, top);
    const field = focus && document.getElementById(focus);
    if (field) field.focus({ preventScroll: true });
  }

  function frame(run, page) {
    const place = page === "call" ? "calls" : page;
    Elements.replace(document.getElementById("pages"), PAGES.map(([name, title, , has], number) =>
      element("a", {
        href: Address.of(name), "aria-current": name === place ? "page" : null, class: has(run, index) ? null : "none",
        title: number < 9 ? `${t("key")} ${number + 1}` : null,
      }, t(title))));
    const shown = document.querySelector("#pages [aria-current]");
    if (shown) shown.scrollIntoView({ block: "nearest", inline: "center" });
    Elements.replace(document.getElementById("run-title"), runTitle(run));
    document.title = `${run ? run.name : "ditorch"} · ${t("report")}`;
    document.querySelector(".skip").textContent = t("Skip to the content");
    document.getElementById("pages").setAttribute("aria-label", t("Pages"));
    const language = document.getElementById("language");
    language.textContent = Words.language === "zh" ? "English" : "中文";
    language.lang = Words.language === "zh" ? "en" : "zh-CN";
    const theme = document.getElementById("theme");
    theme.textContent = isDark() ? "☀" : "☾";
    theme.setAttribute("aria-label", isDark() ? t("Light colours") : t("Dark colours"));
    document.getElementById("help").setAttribute("aria-label", t("Keyboard shortcuts"));
  }

  function runTitle(run) {
    if (index.runs.length < 2) return run ? run.name : "";
    const choice = element("select", { "aria-label": t("Run") }, index.runs.map((one, place) =>
      element("option", { value: place, selected: one === run }, one.name)));
    choice.addEventListener("change", () => {
      const { page } = Address.read();
      location.hash = Address.of(page === "call" ? "overview" : page, { run: choice.value });
    });
    return choice;
  }

  // -- language, theme, keyboard --------------------------------------------------------------------------------------

  const isDark = () => document.documentElement.dataset.theme === "dark";

  function useTheme(name) {
    document.documentElement.dataset.theme = name;
  }

  function useLanguage(name) {
    Words.use(name);
  }

  function switchTheme() {
    useTheme(isDark() ? "light" : "dark");
    remembered.set("theme", isDark() ? "dark" : "light");
    draw({ keep: true });
  }

  function switchLanguage() {
    useLanguage(Words.language === "zh" ? "en" : "zh");
    remembered.set("language", Words.language);
    draw({ keep: true });
  }

  function showHelp() {
    const dialog = document.getElementById("help-dialog");
    const keys = [
      ["1 … 9", t("go to a page")], ["/", t("search calls")], ["↑ ↓ j k", t("choose a row of the table in focus")], ["Enter", t("open it")],
      ["[ ]", t("the call before, the call after")], ["+ − ← →", t("zoom and move the time line in focus")],
      ["Esc", t("out of a part of the flame graph")], ["d", t("dark or light")], ["l", t("language")], ["?", t("this help")],
    ];
    Elements.replace(dialog, element("h2", {}, t("Keyboard shortcuts")),
      element("dl", {}, keys.map(([key, text]) => [element("dt", {}, element("kbd", {}, key)), element("dd", {}, text)])),
      element("form", { method: "dialog" }, element("button", { class: "button" }, t("Close"))));
    if (!dialog.open) dialog.showModal();
  }

  function key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const number = Number(event.key);
    if (number >= 1 && number <= PAGES.length) location.hash = Address.of(PAGES[number - 1][0]);
    else if (event.key === "/") {
      event.preventDefault();
      search();
    } else if (event.key === "d") switchTheme();
    else if (event.key === "l") switchLanguage();
    else if (event.key === "?") showHelp();
    else if (event.key === "[" || event.key === "]") {
      const link = content.querySelector(`a[data-key="${event.key}"]`);
      if (link) link.click();
    }
  }

  async function search() {
    if (Address.read().page !== "calls") {
      history.pushState(null, "", Address.of("calls"));
      await draw();
    }
    const field = document.getElementById("search");
    if (field) field.focus();
  }

  // -- live -----------------------------------------------------------------------------------------------------------

  async function follow() {
    const state = document.getElementById("live-state");
    let version = "";
    for (;;) {
      try {
        const answer = await fetch(`data?version=${encodeURIComponent(version)}`, { cache: "no-store" });
        if (answer.status === 200) {
          const data = await answer.json();
          version = data.version;
          Store.take(data.pieces);
          const first = index === null;
          index = await Store.get("index");
          await draw({ keep: !first });
          state.dataset.version = version;
          if (data.ended) {
            state.textContent = t("ended");
            return;
          }
        } else if (answer.status !== 204) throw new Error(String(answer.status));
        state.textContent = t("live");
        state.className = "on";
      } catch {
        state.textContent = t("no connection");
        state.className = "off";
      }
      await new Promise((resolve) => setTimeout(resolve, 1000 * SECONDS_BETWEEN));
    }
  }

  // -------------------------------------------------------------------------------------------------------------------

  async function begin() {
    const preferred = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    useTheme(remembered.get("theme") || preferred);
    useLanguage(remembered.get("language") || (navigator.language.startsWith("zh") ? "zh" : "en"));
    document.getElementById("theme").addEventListener("click", switchTheme);
    document.getElementById("language").addEventListener("click", switchLanguage);
    document.getElementById("help").addEventListener("click", showHelp);
    document.addEventListener("keydown", key);
    addEventListener("hashchange", () => {
      if (index && location.hash !== "#content") draw();
    });
    const printing = (detail) => content.querySelectorAll(".rows").forEach((one) => one.dispatchEvent(new CustomEvent("printing", { detail })));
    addEventListener("beforeprint", () => printing(true));
    addEventListener("afterprint", () => printing(false));
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault();
      content.focus();
    });
    if (document.body.dataset.live === "yes") {
      follow();
      return;
    }
    index = await Store.get("index");
    await draw();
  }

  begin();
})();

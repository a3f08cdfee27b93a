"use strict";
// Elements of the page. What comes from a run is put in as text, never as HTML.
const Elements = (() => {
  // element("a", {href: "#calls", class: "quiet"}, "all calls"); on… are listeners, style an object of properties
  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (name === "style") for (const [key, one] of Object.entries(value)) made.style.setProperty(key, one);
      else made.setAttribute(name, value === true ? "" : String(value));
    }
    append(made, children);
    return made;
  }

  function append(parent, children) {
    for (const child of children.flat(Infinity)) {
      if (child === null || child === undefined || child === false) continue;
      parent.append(child instanceof Node ? child : document.createTextNode(visible(String(child))));
    }
  }

  // Marks that turn the direction of what follows them would make one name look like another.
  const visible = (text) => text.replace(/[\u202a-\u202e\u2066-\u2069]/g, (mark) => `\\u${mark.charCodeAt(0).toString(16)}`);

  function replace(parent, ...children) {
    parent.replaceChildren();
    append(parent, children);
  }

  function section(title, ...children) {
    const heading = element("h2", {}, title);
    heading.id = `section-${(section.count = (section.count || 0) + 1)}`;
    return element("section", { "aria-labelledby": heading.id }, heading, ...children);
  }

  function command(text) {
    const button = element("button", { type: "button", class: "copy", "aria-label": t("Copy the command") }, t("Copy"));
    button.addEventListener("click", () => copy(text, button));
    return element("div", { class: "command" }, element("code", {}, text), button);
  }

  async function copy(text, button) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = element("textarea", { class: "off-screen" });
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = t("Copied");
    setTimeout(() => (button.textContent = t("Copy")), 1500);
  }

  // what was not recorded, and how it would be
  function missing(text, option, run) {
    return element("div", { class: "missing" }, element("p", {}, text), option ? command(Elements.again(run, option)) : null);
  }

  function again(run, option) {
    const words = (run && run.command ? run.command : "train.py").split(" ");
    while (words.length > 1 && (/(^|\/)python[\d.]*$/.test(words[0]) || /^-[uBO]$/.test(words[0]))) words.shift();
    return `ditorch run ${option} ${words.join(" ")}`;
  }

  // an op's name: its end is what one reads, the whole is there for who looks
  const op = (name) => element("span", { class: "op", title: name }, Words.shortOp(name));

  // a long name that may go on in the next line after each dot
  const dotted = (name) => name.split(/(?<=\.)/).flatMap((part) => [part, element("wbr", {})]);

  function source(where) {
    const place = Words.place(where);
    return element("span", { class: "source", title: where }, place.name, place.text ? element("code", {}, place.text) : null);
  }

  function definitions(rows) {
    return element(
      "dl", {},
      rows.filter(([, value]) => value !== null && value !== undefined && value !== "")
        .map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]),
    );
  }

  return { element, replace, section, command, missing, again, op, dotted, source, definitions };
})();
const { element } = Elements;

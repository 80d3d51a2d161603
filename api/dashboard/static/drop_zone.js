// A field for a file: dropped, chosen or pasted, with a preview; or the address of one. A small file goes within the
// input, a larger one is uploaded first.

import { ask } from "./api.js";
import { fill, h } from "./dom.js";
import { bytes, dataBytes } from "./format.js";

const MOST_INLINE = 256 * 1024; // bytes of a file that are sent within the input
const MOST_PREVIEW = 32 * 1024 * 1024; // of one that is shown before
const SHOWN = /^data:(image|audio|video)\//;

/** A field of one file. */
export function dropZone(schema, { label, isRequired }) {
  const element = h("input", { type: "url", placeholder: "https://…", value: schema.default ?? "", "aria-label": `${label}, as an address` });
  const picked = h("input", { type: "file", class: "unseen", tabindex: "-1", "aria-label": `A file for ${label}` });
  const choose = h("button", { type: "button", on: { click: () => picked.click() } }, "Choose a file");
  const preview = h("div", { class: "preview", hidden: true });
  const empty = h("p", { class: "unfilled" }, choose, h("span", { class: "hint" }, " or drop it here"));
  const node = h("div", { class: "drop" }, preview, empty, picked, element);
  let chosen = null; // a File
  let kept = ""; // a data URI, of a former run
  const tellChange = () => node.dispatchEvent(new Event("input", { bubbles: true }));

  async function take(file) {
    chosen = file;
    kept = "";
    element.value = "";
    const src = file.size <= MOST_PREVIEW ? await inline(file).catch(() => "") : "";
    if (chosen !== file) return; // another one came meanwhile
    show(file.name, file.size, src);
    tellChange();
  }

  function show(name, size, src) {
    const kind = SHOWN.exec(src)?.[1];
    const shown = kind === "image" ? h("img", { src, alt: "" }) : kind ? h(kind, { src, controls: true, "aria-label": name }) : h("span", { class: "mark", "aria-hidden": "true" }, "📄");
    const away = h("button", { type: "button", class: "quiet away", "aria-label": `Remove ${name}`, on: { click: () => { clear(); tellChange(); choose.focus(); } } }, "✕");
    fill(preview, shown, h("span", { class: "of" }, name, size === null ? "" : h("span", { class: "hint" }, ` ${bytes(size)}`)), away);
    state();
  }

  function clear() {
    chosen = null;
    kept = "";
    picked.value = "";
    fill(preview);
    state();
  }

  /** An address is asked for only while no file is there. */
  function state() {
    const isThere = Boolean(chosen || kept);
    preview.hidden = !isThere;
    empty.hidden = element.hidden = isThere;
    element.required = isRequired && !isThere;
  }

  picked.addEventListener("change", () => picked.files.length && take(picked.files[0]));
  node.addEventListener("paste", (event) => { if (event.clipboardData?.files.length) { event.preventDefault(); take(event.clipboardData.files[0]); } });
  onDrop(node, ([first]) => take(first));
  return {
    kind: "file",
    element,
    node,
    choose: take,
    value: async () => (chosen ? sent(chosen) : kept || element.value || undefined),
    now: () => (chosen ? `<the address of ${chosen.name}>` : kept ? `${kept.slice(0, 40)}…` : element.value || undefined),
    take(value) {
      clear();
      element.value = "";
      if (typeof value !== "string") return;
      if (!value.startsWith("data:")) { element.value = value; return; }
      kept = value;
      show("The file from before", dataBytes(value), value);
    },
  };
}

/** A file that misses its field by a little stays out, and the page stays. */
for (const name of ["dragover", "drop"]) window.addEventListener(name, (event) => { if (event.dataTransfer?.types.includes("Files")) event.preventDefault(); });

/** Let files be dropped on an element. */
export function onDrop(node, act) {
  const over = (isOver) => (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    event.stopPropagation();
    node.classList.toggle("over", isOver);
  };
  node.addEventListener("dragenter", over(true));
  node.addEventListener("dragover", over(true));
  node.addEventListener("dragleave", (event) => { if (!node.contains(event.relatedTarget)) node.classList.remove("over"); });
  node.addEventListener("drop", (event) => {
    over(false)(event);
    if (event.dataTransfer?.files.length) act([...event.dataTransfer.files]);
  });
}

async function sent(chosen) {
  if (chosen.size <= MOST_INLINE) return inline(chosen);
  const form = new FormData();
  form.append("content", chosen, chosen.name);
  return (await ask("/v1/files", { method: "POST", body: form })).urls.get;
}

const inline = (chosen) => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result);
  reader.onerror = () => failed(new Error("The file could not be read."));
  reader.readAsDataURL(chosen);
});

// Describe a model: what it does, its picture and its links. A picture is made small here and kept with the model, so
// that no browser asks another site for it.

import { ask } from "../api.js";
import { fill, h, say } from "../dom.js";
import { onDrop } from "../drop_zone.js";
import { picture } from "./model_parts.js";
import { notice } from "./parts.js";

const MOST = 12_000; // characters of a picture, as the service has it
const SIZES = [[640, 360], [480, 270], [320, 180], [240, 135], [160, 90]];
const QUALITIES = [0.85, 0.7, 0.5, 0.3];
const LINKS = [["github_url", "Source"], ["paper_url", "Paper"], ["license_url", "License"]];

/** A form for a model. `onSaved(model)` gets it as it is then. */
export function editor(model, { onSaved, onClose }) {
  const says = h("textarea", { id: "edit-description", rows: "3", maxlength: "5000", value: model.description ?? "" });
  const links = LINKS.map(([name, word]) => [name, word, h("input", { id: `edit-${name}`, type: "url", placeholder: "https://…", value: model[name] ?? "" })]);
  const shown = h("span", { class: "shown" }, picture(model));
  const picked = h("input", { type: "file", accept: "image/*", class: "unseen", tabindex: "-1", "aria-label": "A picture of the model", on: { change: () => picked.files.length && take(picked.files[0]) } });
  const trouble = h("p", { class: "trouble", role: "alert" });
  const save = h("button", { type: "submit", class: "main" }, "Save");
  const remove = h("button", { type: "button", class: "quiet", on: { click: () => set("") } }, "Remove picture");
  let cover = model.cover_image_url ?? "";

  function set(uri) {
    cover = uri;
    fill(shown, picture({ ...model, cover_image_url: uri }));
    remove.hidden = !uri;
  }

  async function take(file) {
    say(trouble, "");
    try { set(await small(file)); } catch (error) { say(trouble, error.message); }
  }

  async function submit(event) {
    event.preventDefault();
    say(trouble, "");
    save.disabled = true;
    const wanted = { description: says.value.trim(), cover_image_url: cover, ...Object.fromEntries(links.map(([name, , field]) => [name, field.value.trim()])) };
    const changed = Object.fromEntries(Object.entries(wanted).filter(([name, value]) => value !== (model[name] ?? "")));
    try {
      onSaved(Object.keys(changed).length ? await ask(`/v1/models/${model.owner}/${model.name}`, { method: "PATCH", body: changed }) : model);
      notice("It is saved.");
    } catch (error) {
      say(trouble, error.message);
    } finally {
      save.disabled = false;
    }
  }

  const drop = h("div", { class: "drop" }, shown, h("div", { class: "actions" }, h("button", { type: "button", on: { click: () => picked.click() } }, "Choose a picture"), remove, picked, h("span", { class: "hint" }, "or drop it here")));
  onDrop(drop, ([first]) => take(first));
  remove.hidden = !cover;
  return h("form", { class: "card edits", novalidate: true, "aria-label": "Describe the model", on: { submit } },
    h("div", { class: "field" }, h("label", { for: "edit-description" }, "What it does"), says),
    h("div", { class: "field" }, h("span", { class: "label" }, "Picture"), drop),
    h("div", { class: "three" }, links.map(([name, word, field]) => h("div", { class: "field" }, h("label", { for: `edit-${name}` }, word), field))),
    trouble,
    h("div", { class: "actions" }, save, h("button", { type: "button", on: { click: onClose } }, "Back")));
}

/** The middle of a picture, as a small WebP or JPEG. */
async function small(file) {
  const image = await createImageBitmap(file).catch(() => { throw new Error("This is no picture that the browser can read."); });
  const canvas = h("canvas");
  for (const [width, height] of SIZES) {
    Object.assign(canvas, { width, height });
    const scale = Math.max(width / image.width, height / image.height);
    const [w, high] = [image.width * scale, image.height * scale];
    canvas.getContext("2d").drawImage(image, (width - w) / 2, (height - high) / 2, w, high);
    for (const quality of QUALITIES) {
      const found = canvas.toDataURL("image/webp", quality);
      if (found.length <= MOST && found.startsWith("data:image/webp")) return found;
      const other = canvas.toDataURL("image/jpeg", quality);
      if (other.length <= MOST) return other;
    }
  }
  throw new Error("This picture does not become small enough.");
}

// The colours: light, dark, or as the system has them.

import { fill } from "./dom.js";
import { icon } from "./icons.js";

const KEPT = "director.theme";
export const THEMES = ["auto", "light", "dark"];

export function setTheme(name) {
  document.documentElement.dataset.theme = name;
  localStorage.setItem(KEPT, name);
  const button = document.getElementById("theme");
  fill(button, icon(name));
  button.setAttribute("aria-label", `Theme: ${name}`);
  button.title = `Theme: ${name}`;
}

/** The colours of last time. The button goes on to the next. */
export function startTheme() {
  const kept = localStorage.getItem(KEPT);
  setTheme(THEMES.includes(kept) ? kept : "auto");
  document.getElementById("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]));
}

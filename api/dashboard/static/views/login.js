// Log in by token. It is tried before the page says that it is good.

import { token } from "../api.js";
import { h, say } from "../dom.js";

export function login({ enter }) {
  const field = h("input", { id: "token", type: "password", required: true, autocomplete: "current-password", spellcheck: "false", "aria-describedby": "login-help login-error" });
  const trouble = h("p", { id: "login-error", class: "trouble", role: "alert" });
  const button = h("button", { type: "submit", class: "main" }, "Log in");

  async function submit(event) {
    event.preventDefault();
    token.set(field.value.trim());
    button.disabled = true;
    try {
      await enter();
    } catch (error) {
      token.drop();
      say(trouble, error.status === 401 ? "This token is not known, or has expired." : error.message);
      field.select();
    } finally {
      button.disabled = false;
    }
  }

  return h("section", { class: "card narrow" },
    h("h1", {}, "Log in"),
    h("form", { on: { submit } },
      h("input", { type: "text", autocomplete: "username", value: "operator", hidden: true }),
      h("label", { for: "token" }, "Token"),
      field,
      h("p", { id: "login-help", class: "hint" }, "With the scope admin you see everything; with another, your own predictions. Make one with ", h("code", {}, "director token create"), ". It is kept in this tab alone."),
      trouble,
      button));
}

// Log in by token, or by a link that works once. A token is tried before the page says that it is good.

import { browser, token } from "../api.js";
import { h, say } from "../dom.js";

export function login({ enter }) {
  const field = h("input", { id: "token", type: "password", required: true, autocomplete: "current-password", spellcheck: "false", "aria-describedby": "login-help login-error" });
  const trouble = h("p", { id: "login-error", class: "trouble", role: "alert" });
  const button = h("button", { type: "submit", class: "main" }, "Log in");
  const stay = h("input", { type: "checkbox", id: "stay", checked: true });

  async function submit(event) {
    event.preventDefault();
    token.set(field.value.trim());
    button.disabled = true;
    try {
      if (stay.checked) {
        await browser.logIn({});
        token.drop();
      }
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
      h("p", { id: "login-help", class: "hint" }, "Some tokens see all accounts, others their own predictions. Make one with ", h("code", {}, "director token create"), ", or a link that needs none with ", h("code", {}, "director login-link"), "."),
      h("p", {}, h("label", { class: "inline", for: "stay" }, stay, " Stay logged in, in all tabs of this browser")),
      trouble,
      button));
}

/** A link that logs in once. A click uses it up: programs that look at links in messages do not. */
export function linked({ link, enter, who }) {
  const trouble = h("p", { class: "trouble", role: "alert" });
  const button = h("button", { type: "button", class: "main", on: { click: follow } }, "Log in");
  const account = link.split(".")[0];

  async function follow() {
    button.disabled = true;
    say(trouble, "");
    try {
      await browser.logIn({ link });
      token.drop();
      await enter();
    } catch (error) {
      say(trouble, error.status === 401 ? "This link was used, or its time is over. Ask for another one." : error.message);
      button.disabled = false;
    }
  }

  return h("section", { class: "card narrow" },
    h("h1", {}, "Log in"),
    h("p", {}, "As ", h("strong", {}, account), ", in all tabs of this browser.", who ? ` You are logged in as ${who.username}; that log-in ends.` : ""),
    trouble,
    h("div", { class: "actions" }, button, " ", h("a", { href: "#/" }, "Not now")));
}

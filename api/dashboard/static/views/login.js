// Log in by token, or by a link that works once. A token is tried before the page says that it is good.

import { browser, token } from "../api.js";
import { fill, h, say } from "../dom.js";
import { notice } from "./parts.js";

export function login({ enter, isGuest }) {
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
    h("p", {}, `${isGuest ? "Ask the person who sent you this link, or your administrator," : "Ask your administrator"} for a log-in link. `, isGuest ? "Open it in this browser, and you come back to this page." : "You need no password."),
    h("form", { on: { submit } },
      h("input", { type: "text", autocomplete: "username", value: "operator", hidden: true }),
      h("label", { for: "token" }, "Token"),
      field,
      h("p", { id: "login-help", class: "hint" }, "If you were given a token, it works here too."),
      h("p", {}, h("label", { class: "inline", for: "stay" }, stay, " Stay logged in, in all tabs of this browser")),
      trouble,
      button),
    forOperators());
}

/** How links and tokens are made, for those who have a terminal. */
const forOperators = () => h("details", {}, h("summary", {}, "For operators"),
  h("p", { class: "hint" }, h("code", {}, "director login-link"), " makes a link, and with ", h("code", {}, "--account NAME"), " one for a person of that account. ", h("code", {}, "director token create"), " makes a token: some see all accounts, others their own predictions."));

/** A link that logs in once. A click uses it up: programs that look at links in messages do not. */
export function linked({ link, enter, who, goOn }) {
  const trouble = h("p", { class: "trouble", role: "alert" });
  const button = h("button", { type: "button", class: "main", on: { click: follow } }, "Log in");
  const node = h("section", { class: "card narrow" },
    h("h1", {}, "Log in"),
    h("p", {}, "As ", h("strong", {}, link.split(".")[0]), ", in all tabs of this browser.", who ? ` You are logged in as ${who.username}; that log-in ends.` : ""),
    trouble,
    h("div", { class: "actions" }, button, " ", h("a", { href: "#/" }, "Not now")));

  async function follow() {
    button.disabled = true;
    say(trouble, "");
    try {
      await browser.logIn({ link });
      token.drop();
      await enter();
    } catch (error) {
      if (error.status === 401) return used();
      say(trouble, error.message);
      button.disabled = false;
    }
    return undefined;
  }

  /** A person who is logged in wants the page and no other log-in. */
  function used() {
    if (who) {
      goOn();
      return notice(`This link no longer works. You are still logged in as ${who.username}.`);
    }
    return fill(node,
      h("h1", {}, "This link no longer works"),
      h("p", {}, "A log-in link works once, and only for a short time. Ask the person who sent it, or your administrator, for another one."),
      h("p", {}, h("a", { href: "#/" }, "Log in with a token")),
      forOperators());
  }

  browser.look(link).then(({ works }) => { if (!works && !button.disabled && node.isConnected) used(); }, () => {});
  return node;
}

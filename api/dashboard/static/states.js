// Why nothing of a queue starts, and how its runs end, in words for a person; and how bad that is.

/** `[words, kind]` of a queue, as `director top` has them; `pace`: how its predictions ended in the range of the page. */
export function stateOf(queue, pace) {
  if (queue.state === "serving" && queue.words === "serving" && pace?.failed && !pace.succeeded) return ["all fail", "bad"];
  return [queue.words, queue.shade];
}

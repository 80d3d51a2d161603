// Small pictures of numbers, as SVG. Each has its numbers as a label for those who do not see it.

const SVG = "http://www.w3.org/2000/svg";

function draw(tag, given, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(given)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A curve of values, oldest first, that can be set again and again. */
export function sparkline(label, { width = 96, height = 22 } = {}) {
  const line = draw("polyline", { fill: "none", class: "line" });
  const node = draw("svg", { class: "spark", role: "img", viewBox: `0 0 ${width} ${height}`, width, height, "aria-label": label }, line);
  const set = (values, text = "") => {
    const top = Math.max(1e-9, ...values);
    const step = width / Math.max(1, values.length - 1);
    const points = values.map((value, at) => `${(at * step).toFixed(1)},${(height - 1.5 - (value / top) * (height - 3)).toFixed(1)}`);
    line.setAttribute("points", points.join(" "));
    node.setAttribute("aria-label", text ? `${label}: ${text}` : label);
  };
  return { node, set };
}

/** Strips of cells, a row for each lane and a cell for each stream: the more it holds, the stronger its colour. */
export function heat(lanes) {
  const most = Math.max(1, ...lanes.flatMap((lane) => lane.cells));
  const rows = lanes.map((lane) => {
    const strip = document.createElement("div");
    strip.className = "strip";
    strip.setAttribute("role", "img");
    strip.setAttribute("aria-label", `${lane.name}: ${lane.cells.join(", ")} waiting in its streams`);
    for (const [number, value] of lane.cells.entries()) {
      const cell = document.createElement("span");
      cell.className = "cell";
      cell.title = `${lane.name}, stream ${number}: ${value}`;
      cell.style.setProperty("--heat", value ? String(0.15 + 0.85 * Math.sqrt(value / most)) : "0");
      strip.append(cell);
    }
    const name = document.createElement("span");
    name.className = "lane";
    name.textContent = lane.name;
    const row = document.createElement("div");
    row.className = "heat";
    row.append(name, strip);
    return row;
  });
  const node = document.createElement("div");
  node.className = "heats";
  node.append(...rows);
  return node;
}

/** One bar of parts, each `{label, value, kind}`, as long as its share of all. */
export function bar(parts, label) {
  const node = document.createElement("div");
  node.className = "parts";
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", `${label}: ${parts.map((part) => part.label).join(", ")}`);
  const whole = parts.reduce((sum, part) => sum + part.value, 0) || 1;
  for (const part of parts) {
    const piece = document.createElement("span");
    piece.className = `part ${part.kind}`;
    piece.title = part.label;
    piece.style.setProperty("flex-basis", `${(100 * part.value) / whole}%`);
    node.append(piece);
  }
  return node;
}

// Small pictures of the frame, drawn in lines of the colour of their text.

const SVG = "http://www.w3.org/2000/svg";
const PATHS = {
  home: "M2.5 7.5 8 3l5.5 4.5V13h-4V9.5h-3V13h-4z",
  models: "M8 2 13.5 5v6L8 14l-5.5-3V5zM2.5 5 8 8l5.5-3M8 8v6",
  deployments: "M8 14V9.5M8 9.5C8 7 4 8 4 4.5M8 9.5C8 7 12 8 12 4.5M2.5 6 4 3.5 5.5 6M10.5 6 12 3.5 13.5 6",
  predictions: "M8.8 2 3.5 9H8l-.8 5L12.5 7H8z",
  batches: "M2.5 5 8 2.5 13.5 5 8 7.5zM2.5 8 8 10.5 13.5 8M2.5 11 8 13.5l5.5-2.5",
  queues: "M2.5 4h11M2.5 8h11M2.5 12h7",
  dead: "M2.5 9.5h3l1 2h3l1-2h3M2.5 9.5 4.5 3h7l2 6.5V13h-11z",
  webhooks: "M6.5 9.5a2.5 2.5 0 0 0 3.6.2l2.2-2.2A2.5 2.5 0 0 0 8.8 4l-1 1M9.5 6.5a2.5 2.5 0 0 0-3.6-.2L3.7 8.5A2.5 2.5 0 0 0 7.2 12l1-1",
  directors: "M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.01M5 11h.01",
  accounts: "M8 8a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM3 13.5c.6-2.4 2.5-3.5 5-3.5s4.4 1.1 5 3.5",
  usage: "M3 13.5V9M6.4 13.5V5M9.7 13.5V7.5M13 13.5V2.5",
  changes: "M3 3v3.2h3.2M3.2 6A5.3 5.3 0 1 1 2.7 9M8 5.5V8l2 1.5",
  system: "M3 4.5h5M11.5 4.5H13M3 11.5h1.5M8 11.5h5M9.8 6.2a1.7 1.7 0 1 0 0-3.4 1.7 1.7 0 0 0 0 3.4zM6.2 13.2a1.7 1.7 0 1 0 0-3.4 1.7 1.7 0 0 0 0 3.4z",
  find: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM10.5 10.5 14 14",
  menu: "M2.5 4h11M2.5 8h11M2.5 12h11",
  close: "M4 4l8 8M12 4l-8 8",
  auto: "M8 13.5a5.5 5.5 0 1 0 0-11 5.5 5.5 0 0 0 0 11zM8 2.5v11M9.5 3v10M11 4v8M12.5 5.5v5",
  light: "M8 10.7a2.7 2.7 0 1 0 0-5.4 2.7 2.7 0 0 0 0 5.4zM8 1.5V3M8 13v1.5M1.5 8H3M13 8h1.5M3.4 3.4l1 1M11.6 11.6l1 1M12.6 3.4l-1 1M4.4 11.6l-1 1",
  dark: "M13.5 9.5A5.7 5.7 0 0 1 6.5 2.5a5.7 5.7 0 1 0 7 7z",
  leave: "M6.5 2.5h-4v11h4M6 8h7.5M10.5 5l3 3-3 3",
  act: "M5 3l7 5-7 5z",
  docs: "M3.5 2.5h6l3 3v8h-9zM9.5 2.5v3h3M5.5 8.5h5M5.5 11h5",
  picture: "M2.5 3.5h11v9h-11zM2.5 10.5l3-3 3 3 2-2 3 3M10.5 6h.01",
  wide: "M9.5 2.5h4v4M13.5 2.5 9 7M6.5 13.5h-4v-4M2.5 13.5 7 9",
};

/** A picture of 16 pixels. It says nothing by itself: its button or link has the words. */
export function icon(name) {
  const picture = document.createElementNS(SVG, "svg");
  const path = document.createElementNS(SVG, "path");
  for (const [given, value] of [["viewBox", "0 0 16 16"], ["width", "16"], ["height", "16"], ["aria-hidden", "true"], ["class", "icon"]]) picture.setAttribute(given, value);
  path.setAttribute("d", PATHS[name]);
  picture.append(path);
  return picture;
}

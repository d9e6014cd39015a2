// A square plot of clouds and ellipses in one plane, both axes on one scale.
const SIDE = 1000;
const CHI = Math.sqrt(5.991464547); // 95 % of a Gaussian in the plane lie within this distance

function finite(shape) {
  return shape && shape.mean && [...shape.mean, ...shape.cov.flat()].every(Number.isFinite);
}

// The points of an ellipse: the mean plus the Cholesky factor times a circle.
function outline(shape) {
  const [[p, q], [, r]] = shape.cov;
  const a = Math.sqrt(Math.max(p, 0));
  const b = a > 0 ? q / a : 0;
  const c = Math.sqrt(Math.max(r - b * b, 0));
  return Array.from({ length: 72 }, (_, k) => {
    const u = CHI * Math.cos(k * Math.PI / 36), v = CHI * Math.sin(k * Math.PI / 36);
    return [shape.mean[0] + a * u, shape.mean[1] + b * u + c * v];
  });
}

function span(points) {
  const ends = [0, 1].map((k) => {
    const values = points.map((point) => point[k]);
    return [Math.min(...values), Math.max(...values)];
  });
  const width = 1.1 * Math.max(...ends.map(([low, high]) => high - low)) || 1;
  return ends.map(([low, high]) => [(low + high - width) / 2, (low + high + width) / 2]);
}

function ticks([low, high]) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high; k++) found.push(k * step);
  return found;
}

// shapes: {name: {mean, cov}}; dots: points, the first of them picked out; `diagonal` marks x = y,
// `zoom` frames the dots only.
function plot(element, { shapes, dots, labels, diagonal, zoom }) {
  const kept = Object.entries(shapes).filter(([, shape]) => finite(shape));
  const outlines = kept.map(([name, shape]) => [name, outline(shape), shape.mean]);
  const everything = [...outlines.flatMap(([, points]) => points), ...dots];
  element.replaceChildren();
  if (!everything.length) return;
  const [across, up] = span(zoom && dots.length ? dots : everything);
  const size = across[1] - across[0];
  const x = (v) => SIDE * (v - across[0]) / size, y = (v) => SIDE * (1 - (v - up[0]) / size);
  const place = ([u, v]) => x(u).toFixed(1) + " " + y(v).toFixed(1);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${SIDE} ${SIDE}`);
  svg.setAttribute("preserveAspectRatio", "none");
  const draw = (className, d) => {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("class", className);
    path.setAttribute("d", d);
    svg.append(path);
  };
  const frame = make("div", "frame"), area = make("div", "area");
  for (const [axis, range] of [["x", across], ["y", up]]) {
    for (const value of ticks(range)) {
      const share = 100 * (value - range[0]) / size + "%";
      const line = make("span", "gridline " + (axis === "x" ? "v" : "h"));
      const tick = make("span", "tick " + axis, String(Number(value.toPrecision(6))).replace("-", "−"));
      line.style[axis === "x" ? "left" : "bottom"] = tick.style[axis === "x" ? "left" : "bottom"] = share;
      area.append(line);
      frame.append(tick);
    }
  }
  if (diagonal) {
    const low = Math.min(across[0], up[0]) - size, high = Math.max(across[1], up[1]) + size;
    draw("loses", `M${place([low, low])}L${place([high, high])}L${place([low, high])}Z`);
    draw("equal", `M${place([low, low])}L${place([high, high])}`);
  }
  draw("dots cloud", dots.map((dot) => "M" + place(dot) + "h0").join(""));
  for (const [name, points, mean] of outlines) {
    draw("ellipse e-" + name, "M" + points.map(place).join("L") + "Z");
    const [u, v] = [x(mean[0]), y(mean[1])];
    draw("centre e-" + name, `M${u - 12} ${v}h24M${u} ${v - 12}v24`);
  }
  if (dots.length) draw("dots now", "M" + place(dots[0]) + "h0");
  area.append(svg);
  frame.append(area);
  element.append(make("div", "ylabel", labels[1]), frame, make("div", "xlabel", labels[0]));
}

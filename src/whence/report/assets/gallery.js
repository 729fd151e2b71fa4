"use strict";
// The gallery: sliders choose a setting, tables that Python exported are interpolated at it, and four panels are drawn.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const signed = (text) => text.replace("-", "−");
  const short = (number) => signed(String(Number(number.toPrecision(3))));

  // Tables: one row per exported setting. Rows are stored as differences from the row
  // before, and these as differences from the point before.
  async function unpack(exhibit) {
    const packed = Uint8Array.from(atob(exhibit.data), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
    const settings = exhibit.sliders.reduce((count, slider) => count * slider.knots.length, 1);
    let at = 0;
    for (const table of Object.values(exhibit.tables)) {
      const points = table.rows * table.columns, size = settings * points;
      const levels = table.bytes === 2 ? new Uint16Array(size) : new Uint8Array(size); // both wrap around
      let sum = 0;
      for (let n = 0; n < size; n++) {
        const difference = table.bytes === 2 ? 256 * bytes[at + n] + bytes[at + size + n] : bytes[at + n];
        sum = n % points ? sum + difference : difference;
        levels[n] = sum + (n < points ? 0 : levels[n - points]);
      }
      table.levels = levels;
      at += table.bytes * size;
    }
  }

  // The exported settings around a setting of the sliders, as [row, weight]
  function corners(exhibit, stops) {
    let found = [[0, 1]];
    exhibit.sliders.forEach((slider, axis) => {
      const { knots } = slider;
      let low = knots.findLastIndex((knot) => knot <= stops[axis]);
      low = Math.max(0, Math.min(low, knots.length - 2));
      const share = knots.length < 2 ? 0 : (stops[axis] - knots[low]) / (knots[low + 1] - knots[low]);
      found = found.flatMap(([row, weight]) => [
        [row * knots.length + low, weight * (1 - share)],
        [row * knots.length + low + 1, weight * share],
      ]).filter(([, weight]) => weight > 0);
    });
    return found;
  }

  function interpolate(table, around) {
    const points = table.rows * table.columns;
    const values = new Float64Array(points);
    for (const [row, weight] of around) {
      for (let n = 0; n < points; n++) values[n] += weight * table.levels[row * points + n];
    }
    const [least, most] = table.drawn;
    return values.map((level) => Math.max(least, Math.min(most, table.low + table.step * level)));
  }

  // Axes
  function ticks(low, high, count) {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    const found = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n++) found.push(Number((n * step).toPrecision(12)));
    return found;
  }

  // Places of round numbers on a logarithmic axis: powers of ten on a long one
  function logTicks(low, high) {
    if (high - low < 1.3) return ticks(10 ** low, 10 ** high, 4).filter((value) => value > 0).map(Math.log10);
    return ticks(low, high, 4).filter(Number.isInteger);
  }

  function range(lists, shortest) {
    let low = Infinity, high = -Infinity;
    for (const values of lists) for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
    const missing = Math.max(0, shortest - (high - low)) / 2;
    return [low - missing, high + missing];
  }

  const element = (name, attributes, parent, text) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };

  const WIDTH = 340, HEIGHT = 230, LEFT = 46, RIGHT = 10, TOP = 8, BOTTOM = 26;

  function drawCurve(chart, panel, now, before, moved) {
    const { table, first } = panel;
    const isLog = panel.scale === "log10";
    const padding = 0.04;
    let [low, high] = range(moved ? [now, before] : [now], table.shortest);
    [low, high] = [low - padding * (high - low), high + padding * (high - low)];
    const last = first + table.columns - 1;
    const x = (value) => LEFT + (WIDTH - LEFT - RIGHT) * (value - first) / (last - first);
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low);
    chart.replaceChildren();
    for (const value of isLog ? logTicks(low, high) : ticks(low, high, 4)) {
      element("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }, chart);
      const text = !isLog ? short(value) : value <= -4 ? signed(`1e${Math.round(value)}`) : short(10 ** value);
      element("text", { x: LEFT - 5, y: y(value) + 4, "text-anchor": "end" }, chart, text);
    }
    for (const value of ticks(first, last, 5)) {
      element("line", { class: "axis", x1: x(value), x2: x(value), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4 }, chart);
      element("text", { x: x(value), y: HEIGHT - BOTTOM + 17, "text-anchor": "middle" }, chart, signed(String(value)));
    }
    element("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }, chart);
    if (panel.reference !== null && low <= panel.reference && panel.reference <= high) {
      element("line", { class: "reference", x1: LEFT, x2: WIDTH - RIGHT, y1: y(panel.reference), y2: y(panel.reference) }, chart);
    }
    const path = (values, head) => Array.from({ length: table.columns }, (_, n) =>
      `${n ? "L" : "M"}${x(first + n).toFixed(1)} ${y(values[head * table.columns + n]).toFixed(1)}`).join("");
    for (let head = 0; head < table.rows && moved; head++) element("path", { class: "ghost", d: path(before, head) }, chart);
    for (let head = 0; head < table.rows; head++) element("path", { class: `head head${head}`, d: path(now, head) }, chart);
    if (panel.reading !== null) {
      const at = x(first + panel.reading);
      element("line", { class: "hairline", x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM }, chart);
      for (let head = 0; head < table.rows; head++) {
        element("circle", { class: `dot${head}`, cx: at, cy: y(now[head * table.columns + panel.reading]), r: 3 }, chart);
      }
    }
  }

  function describe(panel, now) {
    const { table, first, reading } = panel;
    const numbers = Array.from({ length: table.rows }, (_, head) => {
      const value = now[head * table.columns + reading];
      return (table.rows > 1 ? `head ${head} ` : "") + short(panel.scale === "log10" ? 10 ** value : value);
    });
    return `${panel.x} ${signed(String(first + reading))}: ${numbers.join(", ")}`;
  }

  // Maps: colors through the stops of a ramp
  const blend = (stops, share) => {
    const place = Math.max(0, Math.min(1, share)) * (stops.length - 1), from = Math.min(stops.length - 2, Math.floor(place));
    return stops[from].map((start, k) => Math.round(start + (place - from) * (stops[from + 1][k] - start)));
  };

  function drawMap(canvas, length, valueAt, ramp, low, high) {
    const image = new ImageData(length, length), hidden = channels(color("--hidden"));
    for (let query = 0; query < length; query++) {
      for (let key = 0; key < length; key++) {
        const value = valueAt(query, key);
        const shade = value === null ? hidden : blend(ramp, (value - low) / (high - low));
        image.data.set([...shade, 255], 4 * (query * length + key));
      }
    }
    canvas.width = canvas.height = length;
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  function drawBar(figure, ramp, texts) {
    const bar = figure.querySelector(".bar"), pen = bar.getContext("2d");
    bar.width = 128;
    bar.height = 1;
    for (let at = 0; at < 128; at++) { pen.fillStyle = `rgb(${blend(ramp, at / 127)})`; pen.fillRect(at, 0, 1, 1); }
    const [low, high] = figure.querySelectorAll(".scale span");
    [low.textContent, high.textContent] = texts;
  }

  const ramp = (...names) => names.map((name) => channels(color(name)));

  function readMatrix(exhibit, values) {
    const source = values.matrix ? "matrix" : "effect", table = exhibit.tables[source];
    const head = table.rows > 1 ? exhibit.head : 0, { length } = exhibit;
    return (query, key) => {
      if (exhibit.causal && key > query) return null;
      return source === "matrix" ? values.matrix[query * length + key] : values.effect[head * table.columns + query - key - exhibit.first];
    };
  }

  // The colors of the matrix are the same for all settings: the default has at least a third of them, and they reach
  // as far as the exported values. Values beyond have the last color.
  function chooseColors(exhibit, defaults) {
    const table = exhibit.tables[defaults.matrix ? "matrix" : "effect"], read = readMatrix(exhibit, defaults), shown = [];
    for (let query = 0; query < exhibit.length; query++) for (let key = 0; key < exhibit.length; key++) shown.push(read(query, key));
    let [low, high] = range([shown.filter((value) => value !== null)], table.shortest);
    const span = high - low;
    low = Math.min(low, Math.max(table.low, low - span));
    high = Math.max(high, Math.min(table.low + table.step * table.top, high + span));
    const limit = Math.max(-low, high);
    return low < -0.05 * limit && high > 0.05 * limit ? { low: -limit, high: limit, names: ["--below", "--middle", "--above"] }
      : { low, high, names: ["--map-none", "--map-some", "--map-all"] };
  }

  function drawMatrix(figure, exhibit, now, colors) {
    const shades = ramp(...colors.names);
    drawMap(figure.querySelector(".map"), exhibit.length, readMatrix(exhibit, now), shades, colors.low, colors.high);
    drawBar(figure, shades, [short(colors.low), short(colors.high)]);
  }

  function drawAttention(figure, exhibit, now) {
    const colors = ramp("--map-none", "--map-some", "--map-all");
    const [low, high] = exhibit.tables.attention.drawn;
    const valueAt = (query, key) => key > query ? null : now.attention[query * (query + 1) / 2 + key];
    drawMap(figure.querySelector(".map"), exhibit.length, valueAt, colors, low, high);
    drawBar(figure, colors, [short(10 ** low), short(10 ** high)]);
  }

  async function start(article) {
    const exhibit = JSON.parse(article.querySelector("script").textContent);
    await unpack(exhibit);
    const inputs = [...article.querySelectorAll("input[type=range]")];
    const reset = article.querySelector(".reset"), code = article.querySelector("code");
    const defaults = exhibit.sliders.map((slider) => slider.start);
    const compute = (stops) => {
      const around = corners(exhibit, stops);
      return Object.fromEntries(Object.entries(exhibit.tables).map(([name, table]) => [name, interpolate(table, around)]));
    };
    const before = compute(defaults);
    const colors = chooseColors(exhibit, before);
    let now = before;
    const curves = [...article.querySelectorAll(".curve")].map((figure) => ({
      figure, name: figure.dataset.table, table: exhibit.tables[figure.dataset.table], first: Number(figure.dataset.first),
      x: figure.dataset.x, scale: figure.dataset.scale, reference: figure.dataset.reference === "" ? null : Number(figure.dataset.reference),
      reading: null, chart: figure.querySelector("svg"), readout: figure.querySelector(".readout"),
    }));
    const matrix = article.querySelector(".matrix"), attention = article.querySelector(".attention");

    function drawPanel(panel, moved) {
      drawCurve(panel.chart, panel, now[panel.name], before[panel.name], moved);
      panel.readout.textContent = panel.reading === null ? "" : describe(panel, now[panel.name]);
    }

    function draw() {
      const stops = inputs.map((input) => Number(input.value));
      const moved = stops.some((stop, axis) => stop !== defaults[axis]);
      now = moved ? compute(stops) : before;
      exhibit.sliders.forEach((slider, axis) => {
        inputs[axis].setAttribute("aria-valuetext", slider.values[stops[axis]]);
        article.querySelector(`output[for="${inputs[axis].id}"]`).textContent = slider.values[stops[axis]];
      });
      if (exhibit.sliders.length) {
        code.textContent = exhibit.sliders.reduce(
          (text, slider, axis) => text.replace(`{${slider.name}}`, (slider.arguments ?? slider.values)[stops[axis]]), exhibit.code);
        reset.disabled = !moved;
      }
      curves.forEach((panel) => drawPanel(panel, moved));
      drawMatrix(matrix, exhibit, now, colors);
      drawAttention(attention, exhibit, now);
    }

    for (const panel of curves) {
      const read = (at) => {
        panel.reading = at === null ? null : Math.max(0, Math.min(panel.table.columns - 1, at));
        drawPanel(panel, now !== before);
      };
      panel.chart.addEventListener("pointermove", (event) => {
        const box = panel.chart.getBoundingClientRect(), place = (event.clientX - box.left) / box.width * WIDTH;
        read(Math.round((place - LEFT) / (WIDTH - LEFT - RIGHT) * (panel.table.columns - 1)));
      });
      panel.chart.addEventListener("pointerleave", () => read(null));
      panel.chart.addEventListener("blur", () => read(null));
      panel.chart.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity }[event.key];
        if (event.key === "Escape") return read(null);
        if (step === undefined) return;
        event.preventDefault();
        read(panel.reading === null ? Math.max(0, -panel.first) : panel.reading + step);
      });
    }
    inputs.forEach((input) => input.addEventListener("input", draw));
    if (reset) reset.addEventListener("click", () => { inputs.forEach((input, axis) => { input.value = defaults[axis]; }); draw(); inputs[0].focus(); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    addEventListener("beforeprint", draw); // in the colors of paper
    addEventListener("afterprint", draw);
    draw();
    article.dataset.drawn = "1";
  }

  document.querySelectorAll("article.exhibit").forEach((article) => start(article).catch(() => {
    article.querySelector(".failure").hidden = false;
  }));
})();

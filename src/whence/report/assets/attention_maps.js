
"use strict";
// Attention maps: decompressed on first use, drawn on canvas, read with the pointer or the arrow keys.
(() => {
  const tooltip = document.getElementById("tooltip");
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

  // 256 colors from weight 0 to 1, through a middle color so that lightness changes evenly
  function ramp(shade) {
    const stops = ["--map-none", "--map-some", "--map-all"].map((name) => channels(color(name)));
    return Array.from({ length: 256 }, (_, weight) => {
      const place = 2 * (shade === 0 ? Math.sqrt(weight / 255) : weight / 255);
      const from = Math.min(1, Math.floor(place));
      return stops[from].map((start, k) => Math.round(start + (place - from) * (stops[from + 1][k] - start)));
    });
  }

  async function decompress(example) {
    if (!example.bytes) {
      const packed = Uint8Array.from(atob(example.weights), (letter) => letter.charCodeAt(0));
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
      example.bytes = new Uint8Array(await new Response(stream).arrayBuffer());
    }
    return example.bytes;
  }

  const visible = (token) => token.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/^ +$/, "␣") || "∅";
  const short = (token) => { const text = visible(token); return text.length > 9 ? text.slice(0, 8) + "…" : text; };

  function resize(canvas, width, height) {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = height + "px";
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    return pen;
  }

  function drawHatching(pen, x, y, width, height) {
    pen.save();
    pen.beginPath();
    pen.rect(x, y, width, height);
    pen.clip();
    pen.strokeStyle = color("--hatch");
    pen.lineWidth = 0.8;
    pen.beginPath();
    for (let at = -height; at < width; at += 5) { pen.moveTo(x + at, y + height); pen.lineTo(x + at + height, y); }
    pen.stroke();
    pen.restore();
  }

  function viewer(root) {
    const arms = JSON.parse(document.getElementById(root.dataset.maps).textContent).arms;
    const selector = (name) => root.querySelector(`[data-choice=${name}]`);
    const selected = (name) => Number(selector(name).value);
    const panels = [...root.querySelectorAll(".panel canvas")].map((canvas) => ({ canvas, side: canvas.dataset.side }));
    const readout = root.querySelector(".readout");
    let cell = null; // [query, key] under the pointer or the arrow keys
    let latest = 0;

    async function load() {
      const request = ++latest; // an earlier request that finishes later must not overwrite this one
      for (const panel of panels) {
        panel.arm = arms[selected(panel.side)];
        panel.example = panel.arm.examples[selected("example")];
        const bytes = panel.example && await decompress(panel.example);
        if (request !== latest) return;
        if (!panel.example || selected("layer") >= panel.example.layers || selected("head") >= panel.example.heads) {
          panel.weights = null;
          continue;
        }
        const size = panel.example.tokens.length ** 2;
        const first = (selected("layer") * panel.example.heads + selected("head")) * size;
        panel.weights = bytes.subarray(first, first + size);
      }
      cell = null;
      draw();
      root.dataset.drawn = request;
    }

    function draw() {
      const colors = ramp(selected("shade"));
      for (const panel of panels) drawMap(panel, colors);
      drawBar(colors);
    }

    function drawMap(panel, colors) {
      const width = panel.canvas.clientWidth;
      if (!width) return;
      if (!panel.weights) {
        const pen = resize(panel.canvas, width, 60);
        pen.fillStyle = color("--faint");
        pen.font = "13px system-ui, sans-serif";
        pen.fillText("Not recorded for this arm.", 0, 30);
        return;
      }
      const { tokens, padding } = panel.example;
      const count = tokens.length;
      const context = panel.canvas.getContext("2d");
      context.font = "11px system-ui, sans-serif";
      const margin = Math.ceil(Math.max(...tokens.map((token) => context.measureText(short(token)).width))) + 10;
      const top = margin + 16, left = margin + 16;
      const side = Math.max(1, Math.min((width - left - 2) / count, 34));
      const pen = resize(panel.canvas, width, top + side * count + 2);
      Object.assign(panel, { top, left, cellSide: side });

      const image = new ImageData(count, count);
      panel.weights.forEach((weight, at) => image.data.set([...colors[weight], 255], 4 * at));
      const small = document.createElement("canvas");
      small.width = small.height = count;
      small.getContext("2d").putImageData(image, 0, 0);
      pen.imageSmoothingEnabled = false;
      pen.drawImage(small, left, top, side * count, side * count);
      (padding || []).forEach((pad, key) => {
        if (!pad) return;
        drawHatching(pen, left + key * side, top, side, side * count);
        drawHatching(pen, left, top + key * side, side * count, side);
      });
      pen.strokeStyle = color("--line");
      pen.strokeRect(left - 0.5, top - 0.5, side * count + 1, side * count + 1);

      pen.font = `${Math.max(9, Math.min(11, side))}px system-ui, sans-serif`;
      pen.textBaseline = "middle";
      const labelStep = Math.ceil(10 / side);
      tokens.forEach((token, at) => {
        const isCurrent = cell && (cell[0] === at || cell[1] === at);
        if (at % labelStep && !isCurrent) return;
        const middle = (at + 0.5) * side;
        const setColor = (on) => { pen.fillStyle = on ? color("--ink") : color(padding && padding[at] ? "--hatch" : "--faint"); };
        setColor(cell && cell[0] === at);
        pen.textAlign = "right";
        pen.fillText(short(token), left - 5, top + middle);
        setColor(cell && cell[1] === at);
        pen.save();
        pen.translate(left + middle, top - 5);
        pen.rotate(-Math.PI / 2);
        pen.textAlign = "left";
        pen.fillText(short(token), 0, 0);
        pen.restore();
      });
      pen.fillStyle = color("--soft");
      pen.font = "600 11px system-ui, sans-serif";
      pen.textAlign = "left";
      pen.fillText("key →", left, 7);
      pen.save();
      pen.translate(7, top);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "right";
      pen.fillText("← query", 0, 0);
      pen.restore();
      if (cell && cell[0] < count && cell[1] < count) {
        pen.strokeStyle = color("--hue2");
        pen.lineWidth = 2;
        pen.strokeRect(left + cell[1] * side, top + cell[0] * side, side, side);
      }
      panel.canvas.setAttribute("aria-label", `Attention map of ${panel.arm.name}: example ${selected("example") + 1}, layer ` +
        `${selected("layer") + 1}, head ${selected("head") + 1}, ${count} tokens. Arrow keys read single cells.`);
    }

    function drawBar(colors) {
      const bar = root.querySelector(".bar");
      const width = bar.clientWidth, inner = width - 20;
      const pen = resize(bar, width, 42);
      for (let at = 0; at < inner; at++) {
        pen.fillStyle = `rgb(${colors[Math.round(255 * at / inner)]})`;
        pen.fillRect(10 + at, 16, 1.5, 10);
      }
      pen.strokeStyle = color("--line");
      pen.strokeRect(9.5, 15.5, inner + 1, 11);
      pen.fillStyle = color("--faint");
      pen.font = "11px system-ui, sans-serif";
      pen.textAlign = "center";
      for (const weight of [0, 0.25, 0.5, 0.75, 1]) pen.fillText(String(weight), 10 + inner * weight, 39);
      pen.textAlign = "left";
      pen.fillText("attention weight", 9, 10);
    }

    function describe(panel) {
      const { tokens, padding } = panel.example;
      const [query, key] = cell;
      if (query >= tokens.length || key >= tokens.length) return null;
      const weight = panel.weights[query * tokens.length + key] / 255;
      return { where: `query “${visible(tokens[query])}” (${query})\nkey “${visible(tokens[key])}” (${key})` +
        (padding && (padding[key] || padding[query]) ? ", padding" : ""), weight: `${panel.arm.name}: ${weight.toFixed(3)}` };
    }

    function showTooltip(panel, x, y) {
      const all = panels.filter((one) => one.weights).sort((a, b) => (b === panel) - (a === panel)).map(describe).filter(Boolean);
      if (!all.length) return;
      const lines = [all[0].where, ...new Set(all.map((one) => one.weight))];
      tooltip.textContent = lines.join("\n");
      readout.textContent = lines.join(" · ").replace("\n", " · ");
      tooltip.hidden = false;
      const box = tooltip.getBoundingClientRect();
      tooltip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
      tooltip.style.top = (y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 18) + "px";
    }

    function clearCell() { tooltip.hidden = true; if (cell) { cell = null; draw(); } }

    for (const panel of panels) {
      panel.canvas.addEventListener("pointermove", (event) => {
        if (!panel.weights) return;
        const count = panel.example.tokens.length;
        const key = Math.floor((event.offsetX - panel.left) / panel.cellSide);
        const query = Math.floor((event.offsetY - panel.top) / panel.cellSide);
        if (key < 0 || query < 0 || key >= count || query >= count) return clearCell();
        if (!cell || cell[0] !== query || cell[1] !== key) { cell = [query, key]; draw(); }
        showTooltip(panel, event.clientX, event.clientY);
      });
      panel.canvas.addEventListener("pointerleave", clearCell);
      panel.canvas.addEventListener("blur", clearCell);
      panel.canvas.addEventListener("keydown", (event) => {
        const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
        if (event.key === "Escape") return clearCell();
        if (!move || !panel.weights) return;
        event.preventDefault();
        const last = panel.example.tokens.length - 1;
        cell = cell ? cell.map((at, k) => Math.max(0, Math.min(last, at + move[k]))) : [0, 0];
        draw();
        const box = panel.canvas.getBoundingClientRect();
        showTooltip(panel, box.left + panel.left + (cell[1] + 0.5) * panel.cellSide, box.top + panel.top + (cell[0] + 0.5) * panel.cellSide);
      });
    }
    root.querySelectorAll("select").forEach((select) => select.addEventListener("change", load));
    let width = root.clientWidth;
    new ResizeObserver(() => { if (root.clientWidth !== width) { width = root.clientWidth; draw(); } }).observe(root);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    load();
  }

  document.querySelectorAll(".maps").forEach(viewer);
})();

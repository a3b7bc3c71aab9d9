// The what-if section of a report: sliders, the answer in words, and a chart with the measured point and the chosen one. The
// arithmetic is `howfarWhatIf` of what_if.js, which stands before this in the same script. No library, no network, no storage.
"use strict";

(() => {
  const holder = document.getElementById("what-if");
  if (!holder) return;
  const base = JSON.parse(document.getElementById("what-if-base").textContent);
  const measured = JSON.parse(document.getElementById("what-if-measured").textContent);
  const control = (name) => holder.querySelector(`[name="${name}"]`);
  const shown = (name) => holder.querySelector(`[data-shown="${name}"]`);
  const STEPS = 1000, SVG = "http://www.w3.org/2000/svg";
  const ends = {
    rate_bps: [Math.min(1e7, measured.rate_bps ?? 1e9), Math.max(1e11, measured.rate_bps ?? 1e9)],
    rtt_s: [Math.min(1e-5, measured.rtt_s || 1e-5), Math.max(0.2, measured.rtt_s)],
    threads: [1, base.threads_most],
  };

  // Sliders are logarithmic: place 0 .. STEPS between the ends. The measured value is met exactly where the slider was not moved.
  const place = (name, value) => {
    const [low, high] = ends[name];
    return Math.round((STEPS * Math.log(Math.max(value, low) / low)) / Math.log(high / low));
  };
  const valueAt = (name, at) => {
    const [low, high] = ends[name];
    const start = measured[name];
    if (start !== null && start !== undefined && at === place(name, start)) return start; // a round trip of 0 is one too
    const value = low * (high / low) ** (at / STEPS);
    return name === "threads" ? Math.max(1, Math.round(value)) : Number(value.toPrecision(2));
  };

  const digits = (value) => (value >= 100 ? Math.round(value).toLocaleString("en-US") : value.toPrecision(3));
  const rateText = (bps) => (bps >= 1e9 ? `${Number((bps / 1e9).toPrecision(3))} Gb/s` : `${Number((bps / 1e6).toPrecision(3))} Mb/s`);
  const timeText = (s) => (s >= 1 ? `${Number(s.toPrecision(3))} s` : s >= 1e-3 ? `${Number((s * 1e3).toPrecision(3))} ms` : `${Number((s * 1e6).toPrecision(3))} µs`);
  const own = howfarWhatIf(base, measured).tps;
  const texts = { rate_bps: rateText, rtt_s: timeText, threads: (count) => String(count) };

  // As `is_known` of the analysis has it: both boxes together need what TLS adds to a connect.
  const measuredAll = (...names) => names.every((name) => base[name] !== null);
  const known = (tls, each) =>
    (!tls || measuredAll("tls_byte_s")) &&
    (!each || measuredAll("connect_turns", "connect_client_s", "connect_server_s")) &&
    (!(tls && each) || measuredAll("tls_connect_turns", "tls_connect_client_s", "tls_connect_server_s"));

  function settings() {
    const link = measured.rate_bps !== null || control("linked").checked;
    return {
      threads: valueAt("threads", Number(control("threads").value)),
      rtt_s: valueAt("rtt_s", Number(control("rtt_s").value)),
      rate_bps: link ? valueAt("rate_bps", Number(control("rate_bps").value)) : null,
      tls: control("tls").checked,
      connect_each: control("connect_each").checked,
      compression: control("compression").value,
    };
  }

  function reset() {
    for (const name of ["rate_bps", "rtt_s", "threads"]) control(name).value = place(name, measured[name] ?? 1e9);
    control("tls").checked = measured.tls;
    control("connect_each").checked = measured.connect_each;
    control("compression").value = measured.compression;
    if (control("linked")) control("linked").checked = measured.rate_bps !== null;
    update();
  }

  // ---------------------------------------------------------------- the chart

  const WIDTH = window.matchMedia("(max-width: 620px)").matches ? 350 : 680; // text keeps its size on a phone
  const HEIGHT = 260, LEFT = 56, RIGHT = 12, TOP = 12, BOTTOM = 40;
  const counts = [];
  for (let n = 1; n < base.threads_most; n *= 2) counts.push(n);
  counts.push(base.threads_most);
  const across = (threads) => LEFT + ((WIDTH - LEFT - RIGHT) * Math.log(threads)) / Math.log(Math.max(base.threads_most, 2));

  function element(kind, attributes, text) {
    const made = document.createElementNS(SVG, kind);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  const curve = (asked) => counts.map((threads) => [threads, howfarWhatIf(base, { ...asked, threads }).tps]);

  function draw(asked, answer) {
    const now = curve(measured), then = curve(asked);
    const heights = [...now, ...then].map(([, tps]) => tps).concat(base.tps, answer.tps);
    const low = Math.min(...heights) / 1.4, high = Math.max(...heights) * 1.6;
    const up = (tps) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * Math.log(tps / low)) / Math.log(high / low);
    const chart = holder.querySelector("svg");
    const parts = [];
    for (let tick = 10 ** Math.floor(Math.log10(low)); tick <= high; tick *= 10) {
      for (const lead of high / low < 50 ? [1, 2, 5] : [1]) {
        const at = lead * tick;
        if (at < low || at > high) continue;
        parts.push(element("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: up(at), y2: up(at) }));
        parts.push(element("text", { x: LEFT - 6, y: up(at) + 4, "text-anchor": "end" }, at.toLocaleString("en-US")));
      }
    }
    counts.filter((_, index) => index % 2 === 0).forEach((n) =>
      parts.push(element("text", { x: across(n), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, n)),
    );
    parts.push(element("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, "connections"));
    const path = (points) => "M" + points.map(([n, tps]) => `${across(n).toFixed(1)},${up(tps).toFixed(1)}`).join("L");
    parts.push(element("path", { class: "now", d: path(now) }), element("path", { class: "then", d: path(then) }));
    const [mx, my, cx, cy] = [across(base.threads), up(base.tps), across(asked.threads), up(answer.tps)];
    parts.push(element("rect", { class: "measured", x: mx - 6, y: my - 6, width: 12, height: 12, transform: `rotate(45 ${mx} ${my})` }));
    parts.push(element("circle", { class: "chosen", cx, cy, r: 6 }));
    // The two labels keep out of each other's way: the higher point's stands above it, the lower one's below.
    const side = (x) => (x > WIDTH * 0.7 ? { "text-anchor": "end", dx: -10 } : { "text-anchor": "start", dx: 10 });
    const above = cy <= my;
    parts.push(element("text", { class: "label", x: mx, y: my + (above ? 20 : -10), ...side(mx) }, `measured ${digits(base.tps)}/s`));
    parts.push(element("text", { class: "label", x: cx, y: cy + (above ? -10 : 20), ...side(cx) }, `model ${digits(answer.tps)}/s`));
    chart.replaceChildren(chart.querySelector("title"), ...parts);
  }

  // ---------------------------------------------------------------- the answer

  function update() {
    const asked = settings();
    const answer = howfarWhatIf(base, asked);
    for (const name of ["rate_bps", "rtt_s", "threads"]) {
      const value = asked[name];
      shown(name).textContent = value === null ? "no link" : texts[name](value);
      control(name).setAttribute("aria-valuetext", shown(name).textContent);
    }
    control("tls").disabled = !asked.tls && !known(true, asked.connect_each);
    control("connect_each").disabled = !asked.connect_each && !known(asked.tls, true);
    control("rate_bps").disabled = asked.rate_bps === null;
    shown("tps").textContent = digits(answer.tps);
    // Over the model's own answer: over the measured one its error there would read as a gain or a loss of the change.
    shown("ratio").textContent = `x ${(answer.tps / own).toFixed(2)} of the model's ${digits(own)} at the measured settings`;
    shown("limits").textContent = answer.limits === "latency" ? "nothing is full: it waits for round trips" : `limit: ${answer.limits}`;
    shown("cycle").textContent = `${timeText(answer.cycle_s)} a transaction`;
    shown("knee").textContent = `knee N* ${digits(answer.knee)} connections`;
    draw(asked, answer);
  }

  holder.addEventListener("input", update);
  control("reset").addEventListener("click", reset);
  holder.querySelector("svg").setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  holder.hidden = false;
  // The table is for readers without the sliders, and for paper.
  const worked = document.querySelector(".worked details");
  if (worked) {
    worked.open = false;
    window.addEventListener("beforeprint", () => { worked.open = true; });
  }
  reset();
})();

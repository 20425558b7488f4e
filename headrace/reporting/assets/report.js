/* Draws the plots of the page from the data that lies in it. Nothing is fetched. */
"use strict";
(() => {
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const palettes = {
    light: ["#0b6e99", "#c4501b", "#2e8b57", "#9a4fb0", "#b8860b", "#4b5fc0", "#b3416b", "#6b7682"],
    dark: ["#5cc0ea", "#f08a5d", "#63c793", "#c792ea", "#e3b341", "#8ea2ff", "#f07ba6", "#9aa6b2"],
  };
  const made = [];

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const shown = (value) => {
    if (value === null || value === undefined) return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e5 || size < 1e-3) return value.toExponential(2);
    return String(Number(value.toPrecision(4)));
  };

  const tint = (color, alpha) => color + Math.round(alpha * 255).toString(16).padStart(2, "0");

  const seconds = (value) => {
    if (value === null || value === undefined) return "–";
    if (value >= 3600) return shown(value / 3600) + " h";
    if (value >= 60) return shown(value / 60) + " min";
    return value >= 1 ? shown(value) + " s" : value >= 1e-3 ? shown(value * 1e3) + " ms" : shown(value * 1e6) + " µs";
  };

  const whole = [1, 2, 5].flatMap((first) => Array.from({ length: 13 }, (_, power) => first * 10 ** power)).sort((a, b) => a - b);

  const axis = (label, size, isCount, isTime) => ({
    ...(isCount ? { incrs: whole } : {}),
    label, labelSize: 18, labelGap: 0, size, stroke: css("--soft"), font: "11px system-ui, sans-serif",
    labelFont: "11px system-ui, sans-serif", grid: { stroke: css("--rule"), width: 1 }, ticks: { stroke: css("--rule"), width: 1 },
    values: (u, ticks) => ticks.map((tick) => (tick === null ? "" : isTime ? seconds(tick) : shown(tick))),
  });

  const isTime = (plot) => plot.name === "waits";

  const stacked = (lines) => {
    const sums = new Array(lines[0].values.length).fill(0);
    return lines.map((line) => line.values.map((value, i) => (sums[i] += value === null ? 0 : value)));
  };

  const describe = (plot, box) => {
    const colors = dark.matches ? palettes.dark : palettes.light;
    const isStack = plot.style === "stack";
    const isLog = plot.style === "log";
    const data = [plot.x];
    const at = plot.x_unit === "update" ? (value) => `update ${shown(value)}` : (value) => `at ${shown(value)} ${plot.x_unit}`;
    const series = [{ label: "\u00a0", value: (u, value) => (value === null ? "" : at(value)) }];
    const bands = [];
    const sparse = plot.x.length < 60;
    const tops = isStack ? stacked(plot.lines) : null;
    const order = plot.lines.map((line, i) => i);
    if (isStack) order.reverse();
    for (const i of order) {
      const line = plot.lines[i];
      const color = colors[i % colors.length];
      const raw = isLog ? line.values.map((value) => (value > 0 ? value : null)) : line.values;
      const item = {
        label: line.name, stroke: color, width: 1.75, spanGaps: plot.style === "points" || isLog,
        points: { show: plot.style === "points" || sparse, size: 5, fill: color },
        value: (u, value, s, place) => (place === null ? "" : isTime(plot) ? seconds(line.values[place]) : shown(line.values[place])),
      };
      if (isStack) {
        item.paths = uPlot.paths.bars({ size: [1, 100], gap: 0 });
        item.fill = color;
        item.width = 0;
        item.points = { show: false };
      } else if (plot.lines.length === 1) {
        item.fill = tint(color, 0.12);
      }
      series.push(item);
      data.push(isStack ? tops[i] : raw);
      if (line.low.length) {
        const edge = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true, class: "edge" };
        series.push({ ...edge, label: line.name + " high" }, { ...edge, label: line.name + " low" });
        data.push(line.high, line.low);
        bands.push({ series: [series.length - 2, series.length - 1], fill: tint(color, 0.18) });
      }
    }
    if (plot.bound !== null) {
      series.push({
        label: plot.bound_name, stroke: css("--bad"), width: 1, dash: [5, 4], points: { show: false },
        value: () => shown(plot.bound),
      });
      data.push(plot.x.map(() => plot.bound));
    }
    const y = isLog ? { distr: 3 } : {};
    if (plot.y_range) y.range = () => plot.y_range;
    else if (!isLog) y.range = (u, low, high) => {
      if (low === null) return [0, 1];
      const floor = Math.min(0, low);
      const top = high <= floor ? floor + 1 : high + 0.08 * (high - floor);
      return [floor < 0 ? floor * 1.08 : 0, top];
    };
    const options = {
      width: Math.max(240, box.clientWidth), height: plot.section === "trainer" ? 170 : plot.is_wide ? 340 : 230, series, bands,
      scales: { x: { time: false }, y }, axes: [
        axis(plot.x_unit === "update" ? "update" : `time, ${plot.x_unit}`, 40, plot.x_unit === "update", false),
        axis(plot.unit, 58, plot.is_count, isTime(plot)),
      ],
      cursor: { sync: { key: plot.x_unit }, points: { size: 6 } }, legend: { live: true },
    };
    return [options, data];
  };

  const draw = () => {
    while (made.length) made.pop().destroy();
    for (const plot of plots) {
      const box = document.getElementById("plot-" + plot.name);
      if (box === null) continue;
      const [options, data] = describe(plot, box);
      const chart = new uPlot(options, data, box);
      chart.root.querySelectorAll(".u-legend .edge").forEach((row) => row.remove());
      made.push(chart);
    }
  };

  let waiting = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(draw);
  });
  dark.addEventListener("change", draw);
  draw();
})();

// Draws the figures in the colours of the theme, and again when it changes.
(function () {
  "use strict";
  var root = document.documentElement;
  var figures = JSON.parse(document.getElementById("figures").textContent);
  var ids = Object.keys(figures).filter(function (id) { return document.getElementById(id); });
  var coarse = window.matchMedia("(pointer: coarse)").matches;
  var config = {
    displaylogo: false, responsive: true,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  };
  var printing = false;

  document.getElementById("theme").addEventListener("click", function () { window.headwayTheme.toggle(); });

  // Colours in figures are names of CSS variables.
  function colored(value, key, style) {
    if (Array.isArray(value)) return value.map(function (item) { return colored(item, key, style); });
    if (value && typeof value === "object") {
      var copy = {};
      Object.keys(value).forEach(function (name) { copy[name] = colored(value[name], name, style); });
      return copy;
    }
    if (typeof value === "string" && /color$/.test(key) && value.slice(0, 2) === "--") {
      return style.getPropertyValue(value).trim();
    }
    return value;
  }

  function base(style) {
    function get(name) { return style.getPropertyValue(name).trim(); }
    var axis = {
      gridcolor: get("--grid"), zerolinecolor: get("--grid"), linecolor: get("--line"), automargin: true,
      tickfont: { color: get("--muted") }, title: { font: { color: get("--muted"), size: 12 }, standoff: 8 },
    };
    return {
      font: { family: get("--font"), size: 12, color: get("--ink") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 46, r: 12, t: 30, b: 42 }, height: 290,
      hoverlabel: {
        bgcolor: get("--card"), bordercolor: get("--line"), font: { color: get("--ink"), size: 12 },
        namelength: -1,
      },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 }, traceorder: "normal" },
      modebar: { color: get("--muted"), activecolor: get("--accent"), bgcolor: "rgba(0,0,0,0)" },
      xaxis: Object.assign({ showgrid: false, showline: true, ticks: "outside", tickcolor: get("--line") }, axis, { zeroline: false }),
      yaxis: Object.assign({}, axis),
      dragmode: coarse ? false : "zoom",
    };
  }

  function merged(one, other) {
    var result = Object.assign({}, one);
    Object.keys(other).forEach(function (key) {
      var both = [one[key], other[key]].every(function (v) { return v && typeof v === "object" && !Array.isArray(v); });
      result[key] = both ? merged(one[key], other[key]) : other[key];
    });
    return result;
  }

  function draw(id) {
    var style = getComputedStyle(root), figure = colored(figures[id], "", style), element = document.getElementById(id);
    var layout = merged(base(style), figure.layout);
    if (layout.annotations) layout.legend.y = 1.09;  // above the marks
    layout.margin.t = (layout.showlegend ? 30 : 12) + (layout.annotations ? 16 : 0);
    if (figure.height) layout.height = figure.height;
    if (element.clientWidth < 640) figure.data.filter(function (t) { return t.type === "sankey"; }).forEach(function (trace) {
      trace.node.label = trace.node.label.map(function (text) { return text.split("<br>")[0]; });
      layout.font = Object.assign({}, layout.font, { size: 10 });  // beside each other on a phone
    });
    if (printing) {
      layout.width = element.closest(".wide") ? 670 : 325;
      layout.height = Math.min(layout.height, 220);
    }
    return window.Plotly.react(element, figure.data, layout, config);
  }

  function drawAll() { return Promise.all(ids.map(draw)); }

  // One after the other at first, so that the top of the page can be read meanwhile.
  function drawFrom(at) {
    if (at === ids.length) {
      root.dataset.drawn = String(ids.length);
      return;
    }
    draw(ids[at]).then(function () { setTimeout(drawFrom, 0, at + 1); });
  }

  drawFrom(0);
  if (!ids.length) return;
  document.addEventListener("headway-theme", drawAll);

  // On paper: light, everything that is folded but rollouts, plots as wide as a column.
  var before = null, folded = [];
  window.addEventListener("beforeprint", function () {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    folded = Array.from(document.querySelectorAll(".table details:not([open])"));
    folded.forEach(function (item) { item.open = true; });
    printing = true;
    drawAll();
  });
  window.addEventListener("afterprint", function () {
    root.dataset.theme = before;
    folded.forEach(function (item) { item.open = false; });
    printing = false;
    drawAll();
  });
})();

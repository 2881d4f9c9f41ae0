// Before anything is drawn: light or dark, as chosen before, else as the system says.
(function () {
  "use strict";
  var root = document.documentElement;
  var system = window.matchMedia("(prefers-color-scheme: dark)");
  var chosen = null;
  try { chosen = window.localStorage.getItem("headway-theme"); } catch (error) { chosen = null; }
  function apply() {
    root.dataset.theme = chosen || (system.matches ? "dark" : "light");
    document.dispatchEvent(new Event("headway-theme"));
  }
  window.headwayTheme = {
    toggle: function () {
      chosen = root.dataset.theme === "dark" ? "light" : "dark";
      try { window.localStorage.setItem("headway-theme", chosen); } catch (error) { /* this page only */ }
      apply();
    },
  };
  system.addEventListener("change", apply);
  apply();
})();

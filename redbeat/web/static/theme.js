// Sets the theme before anything is painted: loaded by the head, where it blocks for that reason.
"use strict";
{
  const root = document.documentElement;
  root.classList.add("js");
  let theme = "auto";
  try {
    theme = localStorage.getItem("redbeat-theme");
  } catch {
    // storage may be forbidden: the system's theme, then
  }
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
}

// Plots in the colours of the page, light or dark: they are read from the style sheet.

/** The value of a custom property, such as colour("--text"). */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** The colours of lines and bars, in the order to use them; told apart by lightness too. */
export function seriesColours() {
  return [1, 2, 3, 4, 5, 6].map((number) => colour(`--series-${number}`));
}

/** Call draw now, and again whenever the page turns light or dark. */
export function drawThemed(draw) {
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

/** Give a Bokeh figure the colours of the page. */
export function dress(figure) {
  const text = colour("--text");
  const rule = colour("--rule");
  Object.assign(figure, {
    background_fill_color: colour("--surface"),
    border_fill_color: colour("--surface"),
    outline_line_color: rule,
  });
  figure.toolbar.logo = null; // it would lead to another site
  if (figure.title instanceof Object) figure.title.text_color = text;
  for (const axis of [...figure.xaxis, ...figure.yaxis]) {
    Object.assign(axis, {
      axis_label_text_color: text,
      major_label_text_color: text,
      axis_line_color: rule,
      major_tick_line_color: rule,
      minor_tick_line_color: rule,
    });
  }
  for (const grid of [...figure.xgrid, ...figure.ygrid]) grid.grid_line_color = rule;
  Object.assign(figure.legend, {
    background_fill_color: colour("--surface"),
    border_line_color: rule,
    label_text_color: text,
  });
}

/** Put a plot into an element, in place of what was there. */
export function showPlot(plot, element) {
  element.replaceChildren();
  return Bokeh.Plotting.show(plot, element);
}

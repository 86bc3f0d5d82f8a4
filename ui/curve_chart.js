// One Plotly chart of one run or of several: loss above, test accuracy below, one x axis.
// It owns the rows that the page has got; zoom, pan and hidden curves are the reader's and outlive every update.

const EMPTY = {
  points: ['step', 'minutes', 'epoch', 'loss', 'light', 'strong', 'lr'],
  tests: ['step', 'minutes', 'epoch', 'loss', 'accuracy'],
};
const X_TITLES = { step: 'Step', epoch: 'Epoch', minutes: 'Elapsed time (min)' };
const FEW_POINTS = 60; // up to here each logged point is drawn as a dot as well

function columns(kind, rows = {}) {
  return Object.fromEntries(EMPTY[kind].map((name) => [name, rows[name] ?? []]));
}

function append(target, rows) {
  for (const name of Object.keys(target)) for (const value of rows[name]) target[name].push(value);
}

// A name as Plotly shows it literally: it would take <b> for markup.
function literal(name) {
  const short = name.length > 40 ? `${name.slice(0, 39)}\u2026` : name;
  return short.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');
}

// Where `value` of the sorted column `from` lies on the column `to`; straight between two rows.
function translate(value, from, to) {
  const after = from.findIndex((known) => known >= value);
  if (after < 0) return to[to.length - 1];
  if (after === 0) return to[0];
  const part = (value - from[after - 1]) / (from[after] - from[after - 1] || 1);
  return to[after - 1] + part * (to[after] - to[after - 1]);
}

function createChart(div, isComparison) {
  const P = window.Plotly;
  const view = { x: 'step', smooth: isComparison ? 'strong' : 'light', log: false, lr: false };
  const runs = new Map(); // id -> {name, points, tests}
  let hadTests = false; // when it was drawn last
  const style = getComputedStyle(div);
  const isNarrow = () => div.clientWidth < 520; // px
  const css = (name) => style.getPropertyValue(name).trim();

  const parts = isComparison ? ['smooth', 'accuracy'] : ['loss', 'smooth', 'test', 'bad', 'accuracy', 'lr'];

  // x and y of one curve, out of a run's columns (all of them, or only the new rows).
  function pick(part, { points, tests }) {
    const from = part === 'test' || part === 'accuracy' ? tests : points;
    if (part === 'bad') {
      const at = from.step.flatMap((_, i) => (from.loss[i] === null ? [i] : []));
      return { x: at.map((i) => from[view.x][i]), y: at.map((i) => from.light[i]) };
    }
    if (part === 'smooth' && view.smooth === 'none' && !isComparison) return { x: [], y: [] };
    const smooth = view.smooth === 'none' ? 'loss' : view.smooth;
    const name = { loss: 'loss', smooth, test: 'loss', accuracy: 'accuracy', lr: 'lr' }[part];
    return { x: from[view.x].slice(), y: from[name].slice() };
  }

  function look(part, run) {
    const colour = isComparison ? css(`--curve-${run.colour}`) : css(`--curve-${part}`);
    // Runs may coincide: every second one is dashed, so that both are seen.
    const line = { color: colour, width: 2, dash: isComparison && run.colour % 2 === 0 ? 'dash' : 'solid' };
    const few = run.points.step.length <= FEW_POINTS;
    switch (part) {
      case 'loss': {
        const faint = view.smooth !== 'none';
        return {
          name: 'Training loss', mode: few ? 'lines+markers' : 'lines', opacity: faint ? Number(css('--curve-faint')) : 1,
          line: { color: css('--curve-smooth'), width: faint ? 1 : 1.5 }, marker: { size: 4 },
          hovertemplate: '%{y:.4g}',
        };
      }
      case 'smooth':
        return {
          name: isComparison ? literal(run.name) : 'Smoothed', mode: few && isComparison ? 'lines+markers' : 'lines',
          line, marker: { size: 4 }, hovertemplate: '%{y:.4g}', showlegend: isComparison || view.smooth !== 'none',
        };
      case 'test':
        return { name: 'Test loss', mode: 'lines+markers', line, marker: { size: 6 }, hovertemplate: '%{y:.4g}' };
      case 'bad':
        return {
          name: 'Not finite', mode: 'markers', marker: { symbol: 'triangle-up', size: 11, color: colour },
          hovertemplate: 'not a finite number', showlegend: run.points.loss.includes(null),
        };
      case 'accuracy':
        return {
          name: isComparison ? literal(run.name) : 'Test accuracy', yaxis: 'y2', mode: 'lines+markers', line,
          marker: { size: 6 }, hovertemplate: '%{y:.2f} %', showlegend: false, // its pane says what it is
        };
      default:
        return {
          name: 'Learning rate', yaxis: 'y3', mode: 'lines', line: { ...line, width: 1.5, dash: 'dot' },
          hovertemplate: '%{y:.3g}', visible: view.lr, showlegend: false,
        };
    }
  }

  function traces() {
    const shown = new Map((div.data ?? []).map((trace) => [trace.uid, trace.visible]));
    return [...runs].flatMap(([id, run]) => parts.map((part) => {
      const uid = `${id}-${part}`;
      const base = { uid, type: 'scatter', legendgroup: isComparison ? id : uid, visible: shown.get(uid) ?? true };
      return { ...base, ...look(part, run), ...pick(part, run) };
    }));
  }

  function axis(title, more) {
    return {
      title: { text: title, standoff: 6 }, gridcolor: css('--curve-grid'), zeroline: false,
      linecolor: css('--border-color-primary'), tickfont: { size: 11 }, fixedrange: false, ...more,
    };
  }

  // On a log axis Plotly labels 1 to 9 of each decade; 1, 2 and 5 read better until there are too many decades.
  function logTicks() {
    const losses = [...runs.values()].flatMap(({ points }) => points.loss.filter((loss) => loss > 0));
    const [low, high] = losses.reduce(([a, b], loss) => [Math.min(a, loss), Math.max(b, loss)], [Infinity, 0]);
    return high < 1e3 * low ? { dtick: 'D2' } : { dtick: null };
  }

  function layout() {
    const narrow = isNarrow();
    return {
      uirevision: 'kept', hovermode: 'x unified', hoversubplots: 'axis', showlegend: true,
      // A finger that drags over the chart scrolls the page.
      dragmode: matchMedia('(pointer: coarse)').matches ? false : 'zoom',
      margin: { l: 56, r: view.lr ? 60 : 14, t: 30, b: 42 },
      paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)',
      font: { family: style.fontFamily, size: narrow ? 11 : 12, color: css('--body-text-color') },
      legend: { orientation: 'h', x: 0, y: 1.01, yanchor: 'bottom', bgcolor: 'rgba(0,0,0,0)', itemwidth: 30 },
      // A name cut by Plotly could end in the middle of an escaped sign.
      hoverlabel: { bgcolor: css('--background-fill-primary'), bordercolor: css('--border-color-primary'), namelength: -1 },
      modebar: { bgcolor: 'rgba(0,0,0,0)', color: css('--run-soft'), activecolor: css('--curve-smooth') },
      xaxis: axis(X_TITLES[view.x], {
        anchor: 'y2', unifiedhovertitle: { text: `${X_TITLES[view.x]} %{x}` }, nticks: narrow ? 5 : 10,
        rangemode: 'nonnegative',
      }),
      yaxis: axis('Loss', { domain: [0.4, 1], type: view.log ? 'log' : 'linear', nticks: 6, ...(view.log ? logTicks() : {}) }),
      yaxis2: axis('Accuracy (%)', { domain: [0, 0.33], nticks: 4, ...(hasTests() ? {} : { range: [0, 100] }) }),
      yaxis3: axis('Learning rate', {
        overlaying: 'y2', side: 'right', showgrid: false, tickmode: 'auto', nticks: 4, visible: view.lr, rangemode: 'tozero',
      }),
    };
  }

  function hasTests() {
    return [...runs.values()].some((run) => run.tests.step.length);
  }

  const AXES = ['xaxis', 'yaxis', 'yaxis2', 'yaxis3'];

  // Everything anew, with the ranges that the reader chose.
  function draw() {
    const next = layout();
    for (const name of AXES) {
      if (name === 'yaxis2' && !hadTests) continue; // its range stood for an empty pane
      const old = div.layout?.[name];
      if (old?.range && old.autorange === false && old.type === (next[name].type ?? old.type)) {
        Object.assign(next[name], { range: old.range, autorange: false });
      }
    }
    hadTests = hasTests();
    return P.react(div, traces(), next, {
      displaylogo: false, doubleClick: 'autosize',
      // Named one by one: Plotly's own set has a button that uploads the chart to a company's server.
      modeBarButtons: [['toImage', 'zoom2d', 'pan2d', 'autoScale2d']], plotlyServerURL: '',
    });
  }

  function showAll() {
    if (div.layout) for (const name of AXES) Object.assign(div.layout[name], { autorange: true });
  }

  // Only the new rows of one run go to Plotly.
  function extend(id, rows) {
    const first = [...runs.keys()].indexOf(id) * parts.length;
    const update = { x: [], y: [] };
    const which = [];
    parts.forEach((part, offset) => {
      const { x, y } = pick(part, rows);
      if (!x.length) return;
      update.x.push(x);
      update.y.push(y);
      which.push(first + offset);
    });
    if (which.length) return P.extendTraces(div, update, which);
  }

  // Draw exactly these runs. Others leave, and with them the reader's zoom.
  function keep(ids) {
    if (ids.length === runs.size && ids.every((id) => runs.has(id))) return;
    const old = new Map(runs);
    runs.clear();
    const free = new Set([1, 2, 3, 4, 5, 6, 7, 8]); // colours; a run that stays keeps its own
    for (const id of ids) free.delete(old.get(id)?.colour);
    for (const id of ids) {
      const [colour] = free;
      if (!old.has(id)) free.delete(colour);
      runs.set(id, old.get(id) ?? { name: id, colour, points: columns('points'), tests: columns('tests') });
    }
    showAll();
    return draw();
  }

  // Take over what the server sent about the runs.
  async function take(replies) {
    let anew = false;
    for (const reply of replies) {
      const run = runs.get(reply.run);
      const name = reply.short ?? run.name;
      const rows = { points: columns('points', reply.rows), tests: columns('tests', reply.test_rows) };
      const crossing = run.points.step.length <= FEW_POINTS && run.points.step.length + rows.points.step.length > FEW_POINTS;
      const firstBad = rows.points.loss.includes(null) && !run.points.loss.includes(null);
      const isNew = reply.reset || (reply.state === 'missing' && run.points.step.length > 0);
      anew ||= (rows.tests.step.length && !hadTests) || isNew || crossing || firstBad || (isComparison && name !== run.name);
      run.name = name;
      if (isNew) Object.assign(run, rows);
      else for (const kind of ['points', 'tests']) append(run[kind], rows[kind]);
      reply.added = rows;
    }
    if (anew) return draw();
    for (const reply of replies) await extend(reply.run, reply.added);
  }

  function set(name, value) {
    const before = view.x;
    view[name] = value;
    const old = div.layout?.xaxis;
    if (name === 'x' && old?.autorange === false && runs.size) {
      const { points } = [...runs.values()].reduce((a, b) => (a.points.step.length < b.points.step.length ? b : a));
      if (points.step.length) old.range = old.range.map((end) => translate(end, points[before], points[value]));
    }
    return draw();
  }

  draw();
  let wasNarrow = isNarrow();
  new ResizeObserver(async () => {
    if (div.offsetWidth === 0) return; // behind another tab
    if (isNarrow() !== wasNarrow) await draw();
    wasNarrow = isNarrow();
    P.Plots.resize(div);
  }).observe(div);
  new MutationObserver(draw).observe(document.body, { attributes: true, attributeFilter: ['class'] });
  return { view, set, keep, take, count: (id) => runs.get(id)?.points.step.length ?? 0 };
}

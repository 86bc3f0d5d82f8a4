// The table of all runs. Runs once with element, trigger, props, server, watch; run_head.js stands before it.
// While it can be seen it asks each second for the rows that changed. The selection is the page's own.

const TABLE_PERIOD = 1000; // ms
const CELLS = ['pick', 'state', 'name', 'mode', 'devices', 'best', 'speed', 'epochs', 'started', 'time'];
const NUMBERS = ['best', 'speed', 'epochs', 'time'];

function clock(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

function day(seconds) {
  const date = new Date(seconds * 1000);
  const time = date.toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' });
  const today = date.toDateString() === new Date().toDateString();
  return today ? `today ${time}` : `${date.toLocaleDateString('en-GB', { day: 'numeric', month: 'short' })} ${time}`;
}

function texts(row, skew) {
  const end = row.ended ?? Date.now() / 1000 + skew;
  return {
    mode: row.mode,
    devices: row.devices,
    best: row.best === null ? '-' : `${(100 * row.best).toFixed(2)} %`,
    speed: row.speed === null ? '-' : row.speed >= 100 ? Math.round(row.speed).toLocaleString('en') : row.speed.toPrecision(3),
    epochs: `${Number(row.epoch.toFixed(2))} / ${row.epochs}`,
    started: row.started === null ? '-' : day(row.started),
    time: row.began === null ? '-' : clock(end - row.began),
  };
}

function createRow(id, choose) {
  const line = node('tr');
  line.dataset.run = id;
  const cells = Object.fromEntries(CELLS.map((name) => [name, node('td', '', { className: `c-${name}` })]));
  for (const name of NUMBERS) cells[name].classList.add('number');
  const box = node('input', '', { type: 'checkbox' });
  cells.pick.append(box);
  const state = node('span', '', { className: 'run-state' });
  state.append(node('span', '', { className: 'run-dot' }), node('span', '', { className: 'run-word' }));
  cells.state.append(state);
  cells.name.append(node('span', '', { className: 'runs-title' }), node('span', '', { className: 'runs-about' }));
  line.append(...Object.values(cells));
  line.addEventListener('click', (event) => choose(id, event.target === box || event.ctrlKey || event.metaKey));
  return { line, cells, box, state };
}

function showRow(made, row, skew) {
  const { cells, box, state } = made;
  state.dataset.state = row.state;
  put(state.lastChild, (STATE_WORDS[row.state] ?? row.state) + (row.place ? `, ${row.place}` : ''));
  put(cells.name.firstChild, row.name);
  put(cells.name.lastChild, row.about);
  cells.name.lastChild.dataset.place = row.place ? `${row.place} in the queue, ` : '';
  cells.name.title = row.id;
  box.setAttribute('aria-label', `Select ${row.name}`);
  for (const [name, text] of Object.entries(texts(row, skew))) put(cells[name], text);
}

function createTable() {
  const root = element.querySelector('.runs-body');
  const body = root.querySelector('tbody');
  const note = root.querySelector('.runs-note');
  const known = new Map(); // id -> {row, line, cells, box, state}
  let selected = new Set();
  let cursor = { version: 0, server: '' };
  let skew = 0; // seconds by which the server's clock is ahead

  function mark() {
    for (const [id, made] of known) {
      made.box.checked = selected.has(id);
      made.line.classList.toggle('chosen', selected.has(id));
    }
  }

  function tell() {
    mark();
    trigger('pick', { runs: [...known.keys()].filter((id) => selected.has(id)) });
  }

  function choose(id, isMore) {
    if (!isMore) selected = new Set([id]);
    else if (!selected.delete(id)) selected.add(id);
    tell();
  }

  function take(answer) {
    if (answer.server !== cursor.server) known.clear();
    cursor = { version: answer.version, server: answer.server };
    skew = answer.now - Date.now() / 1000;
    let isToldAgain = false;
    for (const row of answer.rows) {
      const made = known.get(row.id) ?? createRow(row.id, choose);
      isToldAgain ||= selected.has(row.id) && made.row !== undefined && made.row.state !== row.state;
      made.row = row;
      known.set(row.id, made);
    }
    if (answer.order) {
      for (const id of [...known.keys()]) {
        if (answer.order.includes(id)) continue;
        known.delete(id);
        isToldAgain = selected.delete(id) || isToldAgain;
      }
      const sorted = answer.order.filter((id) => known.has(id)).map((id) => [id, known.get(id)]);
      known.clear();
      for (const [id, made] of sorted) known.set(id, made);
      body.replaceChildren(...sorted.map(([, made]) => made.line));
    }
    for (const made of known.values()) showRow(made, made.row, skew);
    root.querySelector('table').hidden = !known.size;
    root.querySelector('.runs-empty').hidden = known.size > 0;
    put(note, answer.more ? `The ${known.size} newest runs; ${answer.more} older ones are not listed.` : '');
    isToldAgain ? tell() : mark();
  }

  async function ask() {
    const answer = await within(server.rows(cursor), () => put(note, SLOW));
    whole(answer, 'rows');
    take(answer);
  }

  function warn(trouble) {
    if (trouble) put(note, trouble); // else it says what is not listed
    note.classList.toggle('trouble', trouble !== '');
  }

  const tick = keepAsking(root, TABLE_PERIOD, ask, warn);
  watch('value', () => {
    selected = new Set(props.value?.selected ?? []);
    mark();
    tick();
  });
  tick();
}

createTable(); // a selection is told by 'pick', which Python finds by this quoted name

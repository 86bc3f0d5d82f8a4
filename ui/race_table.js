// The table of a race. Runs once with element, trigger, props, server, watch; run_head.js stands before it.
// While it can be seen it asks each second for what changed.

const RACE_PERIOD = 1000; // ms
const RACE_WORDS = {
  on: 'Racing', done: 'Done', stopped: 'Stopped', failed: 'Not all were completed', missing: 'Not there any more',
};
const RACE_DOTS = { on: 'running', done: 'completed', stopped: 'stopped', failed: 'failed', missing: 'missing' };
const RACE_TEACHING = {
  none: ['Which mode is the fastest here?', 'A race trains the same network in several modes, one after the other, and lays '
    + 'their speed and their curves side by side. Choose the modes and press Start race.'],
  missing: ['This race is not here', 'It was deleted or moved, or all of its runs were. Choose another one.'],
};

function raceCell(text, more, className) {
  const cell = node('td', '', { className });
  cell.append(node('span', text));
  if (more) cell.append(node('span', more, { className: 'race-more' }));
  return cell;
}

function raceRow(row) {
  const line = node('tr');
  line.dataset.mode = row.name;
  const name = raceCell(row.name, row.about, 'c-mode');
  const bar = node('div', '', { className: 'race-share' });
  const fill = node('div');
  fill.style.width = `${100 * row.share}%`;
  bar.append(fill);
  name.append(bar);
  const state = node('td', '', { className: 'c-state' });
  const word = node('span', '', { className: 'run-state' });
  word.dataset.state = row.status;
  word.append(node('span', '', { className: 'run-dot' }), node('span', row.state, { className: 'run-word' }));
  state.append(word);
  line.append(name, ...row.cells.map(([text, more]) => raceCell(text, more, 'number')), state);
  return line;
}

function followRace() {
  const root = element.querySelector('.race-body');
  const find = (name) => root.querySelector(name);
  let seen; // what the page shows
  let shown = ''; // of which race or runs
  let told = '';

  function wanted() {
    const { race, runs } = props.value ?? {};
    return { race: typeof race === 'string' ? race : null, runs: Array.isArray(runs) ? runs : [] };
  }

  function show(answer) {
    const { state, about = '', share = null, progress = '', headline = '', columns = [], rows = [] } = answer;
    const isThere = rows.length > 0;
    find('.race-top').hidden = !isThere;
    find('.race-empty').hidden = isThere;
    const [what, how] = RACE_TEACHING[state] ?? RACE_TEACHING.none;
    put(find('.race-empty strong'), what);
    put(find('.race-empty span'), answer.reason || how);
    if (!isThere) return;
    find('.run-state').dataset.state = RACE_DOTS[state];
    put(find('.run-word'), RACE_WORDS[state]);
    put(find('.race-title'), about);
    find('.race-title').title = about;
    find('.race-link').hidden = !answer.race;
    find('.race-link').href = `?race=${answer.race}`;
    find('.run-bar').hidden = find('.race-progress').hidden = state !== 'on';
    find('.run-bar').firstElementChild.style.width = `${100 * (share ?? 0)}%`;
    find('.run-bar').setAttribute('aria-valuenow', Math.floor(100 * (share ?? 0)));
    put(find('.race-progress'), progress);
    put(find('.race-headline'), headline);
    const heads = [['Mode', ''], ...columns, ['State', '']].map(([text, title], i, all) => (
      node('th', text, { title, className: i === 0 ? 'c-mode' : i === all.length - 1 ? 'c-state' : 'number' })
    ));
    find('thead tr').replaceChildren(...heads);
    find('tbody').replaceChildren(...rows.map(raceRow));
    const reasons = rows.filter((row) => row.reason).map((row) => node('li', `${row.name}: ${row.reason}`));
    find('.race-reasons').replaceChildren(...reasons);
    find('.race-reasons').hidden = !reasons.length;
    const verdicts = rows.filter((row) => row.verdict).map((row) => {
      const item = node('li');
      item.append(node('b', row.name), `: ${row.verdict}`);
      return item;
    });
    find('.race-verdicts').replaceChildren(...verdicts);
    find('.race-verdicts').hidden = !verdicts.length;
    const findings = (answer.findings ?? []).map((text) => node('li', text));
    find('.race-findings').replaceChildren(...findings);
    find('.race-findings').hidden = !findings.length;
  }

  function take(request, answer) {
    const isWhole = 'race' in answer;
    seen = answer.seen;
    if (!isWhole) return;
    show(answer);
    const fact = JSON.stringify([request, answer.state, answer.runs]);
    if (fact !== told && told !== '') trigger('racechange', { state: answer.state });
    told = fact;
  }

  async function ask() {
    const request = wanted();
    const key = JSON.stringify(request);
    if (key !== shown) seen = undefined;
    const answer = await within(server.race({ ...request, seen }), () => put(find('.race-note'), SLOW));
    whole(answer, 'state');
    if (JSON.stringify(wanted()) !== key) return;
    shown = key;
    take(request, answer);
  }

  function warn(trouble) {
    put(find('.race-note'), trouble);
    find('.race-note').classList.toggle('trouble', trouble !== '');
  }

  async function saveReport() {
    const button = find('.race-save');
    button.disabled = true;
    put(button, 'Writing ...');
    try {
      const { html, name, reason, trouble } = await server.report(wanted());
      if (!html) throw new Error(reason || trouble || 'there is nothing to report');
      const link = node('a', '', { href: URL.createObjectURL(new Blob([html], { type: 'text/html' })), download: name });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
      put(button, 'Save report');
    } catch (error) { // stays until it is pressed again: what stands in the note is swept away by the next answer
      put(button, `No report: ${error.message}`);
    }
    button.disabled = false;
  }

  find('.race-save').addEventListener('click', saveReport);
  const tick = keepAsking(root, RACE_PERIOD, ask, warn);
  watch('value', tick); // a change is told by 'racechange', which Python finds by this quoted name
  show({ state: 'none' });
  tick();
}

followRace();

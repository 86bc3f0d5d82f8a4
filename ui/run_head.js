// The words around the chart: state, progress, facts, troubles, log, and the small tools.
// All text is set as text: nothing that a run or a log says can become markup.

const STATE_WORDS = {
  queued: 'Queued', starting: 'Starting', running: 'Running', stopping: 'Stopping', completed: 'Completed',
  stopped: 'Stopped', failed: 'Failed', diverged: 'Diverged', interrupted: 'Interrupted', missing: 'Not there any more',
};
const FACT_NAMES = ['Epoch', 'Step', 'Images/s', 'Training loss', 'Test accuracy', 'Best'];
const LIVING = ['queued', 'starting', 'running', 'stopping'];

function put(node, text) {
  if (node && node.textContent !== text) node.textContent = text;
}

function node(tag, text, attributes = {}) {
  const made = Object.assign(document.createElement(tag), attributes);
  if (text) made.textContent = text;
  return made;
}

function whole(answer, key) { // what fails on the way arrives as undefined
  if (answer?.trouble) throw new Error(answer.trouble, { cause: 'server' });
  if (answer?.[key] === undefined) throw new Error('no answer');
  return answer[key];
}

function noAnswer(error) { // after a failed request
  if (error.cause === 'server') return error.message;
  return document.querySelector('.page-outdated') ? 'Not up to date: reload the page' : 'Connection lost, retrying';
}

const SLOW = 'No answer yet, waiting';
const SLOW_AFTER = 3000; // ms
const PATIENCE = 30000; // ms until an answer counts as lost; a million points are read in less

function within(promise, slow) {
  let late;
  const warning = setTimeout(slow, SLOW_AFTER);
  const lost = new Promise((_, fail) => { late = setTimeout(fail, PATIENCE, new Error('no answer')); });
  return Promise.race([promise, lost]).finally(() => [warning, late].forEach(clearTimeout));
}

const LONGEST_PERIOD = 8000; // ms

// Awaits `ask` each `period` ms while `place` can be seen, less often while it fails. `tell` gets what is wrong, or ''.
// Returns the function that asks at once.
function keepAsking(place, period, ask, tell) {
  let busy = false;
  let again = false;
  let failures = 0;
  let timer = 0;

  async function tick() {
    if (!element.isConnected) return; // the component is gone: end
    if (busy) { again = true; return; }
    clearTimeout(timer);
    busy = true;
    again = false;
    try {
      if (document.visibilityState === 'visible' && place.offsetParent !== null) {
        await ask();
        failures = 0;
        tell('');
      }
    } catch (error) {
      failures += 1;
      tell(noAnswer(error));
    }
    busy = false;
    timer = setTimeout(tick, again ? 0 : Math.min(period * 2 ** failures, LONGEST_PERIOD));
  }

  document.addEventListener('visibilitychange', tick);
  return tick;
}

function createHead(root) {
  const find = (name) => root.querySelector(`.run-${name}`);
  const bar = find('bar');
  let state = '';
  let words = ''; // instead of the state, which may have changed meanwhile

  function word() {
    find('state').dataset.state = words ? 'lost' : state;
    put(find('word'), words || (STATE_WORDS[state] ?? 'No run'));
  }

  function numbers(facts) {
    const list = find('facts');
    if (!list.children.length) {
      for (const name of FACT_NAMES) {
        const pair = node('div');
        pair.append(node('dt', name), node('dd', '-'));
        list.append(pair);
      }
    }
    list.querySelectorAll('dd').forEach((cell, i) => put(cell, facts[i]?.[1] ?? '-'));
  }

  function progress(share) {
    bar.firstElementChild.style.width = `${100 * (share ?? 0)}%`;
    if (share === null) bar.removeAttribute('aria-valuenow');
    else bar.setAttribute('aria-valuenow', Math.floor(100 * share));
  }

  function show(reply) {
    state = reply.state ?? '';
    word();
    root.dataset.state = state;
    find('log').hidden = !reply.run;
    find('inside').hidden = !reply.run;
    put(find('clock'), reply.elapsed ? `${reply.elapsed} elapsed` : '');
    if (!reply.seen && reply.run && state !== 'missing') return; // the facts are as they were
    const { name = '', setup = '', share = null, left = '', facts = [], reason = '', notes = [], verdict = '' } = reply;
    put(find('name'), name);
    find('name').title = reply.run ?? '';
    put(find('setup'), setup);
    find('setup').title = setup;
    const percent = share === null ? '' : `${Math.floor(100 * share)} %`;
    put(find('left'), reply.progress || [percent, left].filter(Boolean).join(', '));
    progress(share);
    numbers(facts);
    put(find('reason'), reason);
    find('reason').hidden = !reason;
    find('notes').replaceChildren(...notes.map((text) => node('li', text)));
    find('notes').hidden = !notes.length;
    put(find('verdict'), verdict);
  }

  function lost(value) {
    words = value;
    word();
  }

  show({ run: null });
  return { show, lost };
}

function createLog(root) {
  const details = root.querySelector('.run-log');
  const text = details.querySelector('pre');
  return {
    get isOpen() { return details.open; },
    onOpen(then) { details.addEventListener('toggle', then); },
    show(lines) {
      const atEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 24;
      put(text, lines || 'The log is empty so far.');
      if (atEnd) text.scrollTop = text.scrollHeight;
    },
  };
}

function createTools(box, chart, isComparison) {
  function choice(title, name, options) {
    const label = node('label', `${title} `);
    const select = node('select');
    for (const [value, text] of options) select.append(node('option', text, { value, selected: chart.view[name] === value }));
    select.addEventListener('change', () => chart.set(name, select.value));
    label.append(select);
    box.append(label);
  }
  function tick(title, name) {
    const label = node('label');
    const input = node('input', '', { type: 'checkbox' });
    input.addEventListener('change', () => chart.set(name, input.checked));
    label.append(input, ` ${title}`);
    box.append(label);
  }
  choice('X axis', 'x', [['step', 'Step'], ['epoch', 'Epoch'], ['minutes', 'Time']]);
  choice('Smoothing', 'smooth', [['none', 'None'], ['light', 'Light'], ['strong', 'Strong']]);
  tick('Log loss', 'log');
  if (!isComparison) tick('Learning rate', 'lr');
}

// Follows the runs that the component's value names. Runs once with element, trigger, props, server, watch.
// One request a second while it can be seen; the server keeps nothing about the page: the cursors are here. Ended
// runs are asked about as well: somebody may resume them.

const PERIOD = 1000; // ms
const BINS = { run: 1024, compare: 256 };
const TEACHING = {
  run: ['Nothing has been trained yet', 'Choose a preset and press Start: the loss appears here while the network learns.'],
  compare: ['Nothing to compare yet', 'Choose two or more runs: their loss and test accuracy are drawn over each other.'],
};

function follow(mode) {
  const isComparison = mode === 'compare';
  const root = element.querySelector('.curves-body');
  const div = root.querySelector('.curve-chart');
  const empty = root.querySelector('.curve-empty');
  const chart = createChart(div, isComparison);
  const head = isComparison ? null : createHead(root);
  const log = isComparison ? null : createLog(root);
  const inside = isComparison ? null : createInside(root.querySelector('.run-inside'));
  const cursors = new Map(); // run id -> {version, points, tests, seen, state, waits}
  let board; // the version of the queue and of the runs at work
  createTools(root.querySelector('.curve-tools'), chart, isComparison);

  function wanted() {
    const value = props.value ?? {};
    const ids = isComparison ? value.runs ?? [] : [value.run];
    return [...new Set(ids.filter((id) => typeof id === 'string'))].slice(0, 8);
  }

  function say(ids) {
    const hasPoints = ids.some((id) => chart.count(id));
    const states = ids.map((id) => cursors.get(id)?.state);
    const [title, text] = !ids.length ? TEACHING[mode]
      : states.every((state) => state === 'queued') ? ['Waiting in the queue', cursors.get(ids[0]).waits ?? '']
      : states.every((state) => state === 'missing') ? ['This run is not here', 'It was deleted or moved, or cannot be read. Choose another one.']
      : states.some((state) => LIVING.includes(state)) ? ['Waiting for the first step', 'The curves begin as soon as the network has learnt from its first pictures.']
      : states.includes(undefined) ? ['Loading', ''] : ['No point was logged', 'The run ended before its first step.'];
    empty.hidden = hasPoints;
    div.classList.toggle('has-points', hasPoints);
    if (!hasPoints && empty.textContent !== title + text) empty.replaceChildren(node('strong', title), node('span', text));
    const what = isComparison ? 'training loss and test accuracy of the chosen runs' : 'training loss, test loss and test accuracy';
    div.setAttribute('aria-label', `Chart of ${what} by ${chart.view.x}${hasPoints ? '' : ': no points yet'}`);
  }

  function note(reply) {
    const cursor = cursors.get(reply.run);
    const { version, points, tests, seen = cursor.seen, state, progress: waits = cursor.waits } = reply;
    cursors.set(reply.run, { version, points, tests, seen: state === 'missing' ? undefined : seen, state, waits });
    if (state !== cursor.state) trigger('statechange', { run: reply.run, state });
  }

  async function poll() {
    const ids = wanted();
    for (const id of cursors.keys()) if (!ids.includes(id)) cursors.delete(id);
    for (const id of ids) if (!cursors.has(id)) cursors.set(id, {});
    await chart.keep(ids);
    say(ids);
    if (!ids.length) head?.show({ run: null });
    if (!ids.length && (isComparison || props.value?.run === undefined)) return; // nothing is known yet
    const request = ids.map((run) => {
      const { version, points, tests, seen } = cursors.get(run);
      const tooMany = chart.count(run) > 6 * BINS[mode]; // the server thins the whole history again
      return { run, version: tooMany ? '' : version, points, tests, seen };
    });
    const answer = await within(server.points({ runs: request, bins: BINS[mode] }), () => lost(SLOW));
    const replies = whole(answer, 'runs').filter((reply) => cursors.has(reply.run) && wanted().includes(reply.run));
    await chart.take(replies);
    for (const reply of replies) {
      head?.show(reply);
      note(reply);
    }
    say(wanted());
    if (!isComparison && answer.board !== board) trigger('runschange', {});
    board = answer.board;
    if (inside?.isOpen && ids.length) {
      inside.show(whole({ inside: await within(server.inside({ run: ids[0], steps: inside.steps }), () => lost(SLOW)) }, 'inside'));
    }
    if (log?.isOpen && ids.length) {
      log.show(whole(await within(server.log({ run: ids[0] }), () => lost(SLOW)), 'text'));
    }
  }

  function lost(words) {
    head?.lost(words);
    put(root.querySelector('.compare-note'), words);
  }

  const tick = keepAsking(div, PERIOD, poll, lost);
  watch('value', tick); // a state change is told by 'statechange', which Python finds by this quoted name
  log?.onOpen(tick);
  inside?.onOpen(tick);
  tick();
}

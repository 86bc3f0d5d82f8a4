// The inside of a run: a lane for each rank with its newest steps, what a step is made of, how that changed, and the
// processes. All of it comes with each answer; only the processor use is a difference between two of them.

const PART_WORDS = {
  data: 'pictures', scatter: 'scatter', replicate: 'replicate', forward: 'forward', gather: 'gather', backward: 'backward',
  waiting: 'waiting for others', exchange: 'exchange', optimizer: 'optimizer', other: 'bookkeeping',
};
const PROCESS_COLUMNS = ['Process', 'pid', 'Device', 'Threads', 'Memory', 'CPU', 'Step', 'State'];

function row(cells, tag = 'td') {
  const made = node('tr');
  cells.forEach((text, i) => made.append(node(i ? tag : 'th', text, i || tag === 'th' ? {} : { scope: 'row' })));
  return made;
}

function milliseconds(value) {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

function createInside(details) {
  const find = (name) => details.querySelector(`.inside-${name}`);
  let used = new Map(); // pid -> {cpu, at}: processor seconds at the last look

  function bar(part, begin, length, whole, vertical) {
    const made = node('i', '', { className: `part part-${part}`, title: `${PART_WORDS[part]}: ${milliseconds(length)} ms` });
    const [from, size] = vertical ? ['bottom', 'height'] : ['left', 'width'];
    made.style[from] = `${(100 * begin) / whole}%`;
    made.style[size] = `${(100 * length) / whole}%`;
    return made;
  }

  function key(parts) {
    find('key').replaceChildren(...parts.map((part) => {
      const item = node('li');
      item.append(node('i', '', { className: `part part-${part}` }), node('span', PART_WORDS[part]));
      return item;
    }));
  }

  function lanes({ steps, ms, ranks }) {
    put(find('lane-title'), `Steps ${steps[0]} to ${steps.at(-1)}, ${milliseconds(ms)} ms in all`);
    find('lanes').setAttribute('aria-label', `Lanes of ${ranks.length} rank${ranks.length > 1 ? 's' : ''}; the table below has the numbers`);
    find('lanes').replaceChildren(...ranks.map((segments, rank) => {
      const lane = node('div', '', { className: 'lane' });
      const track = node('div', '', { className: 'track' });
      track.append(...segments.map(([part, begin, length]) => bar(part, begin, length, ms)));
      lane.append(node('span', ranks.length > 1 ? `rank ${rank}` : 'step'), track);
      return lane;
    }));
  }

  function table(parts, means, steps) {
    const found = details.querySelector('.inside-means');
    const last = Math.min(5, steps.length);
    put(found.caption.firstChild, `Milliseconds in a step, mean of the last ${last}${means.some((rank) => rank.hidden > 0) ? '; hidden: exchange behind backward' : ''}`);
    const hidden = means.some((rank) => rank.hidden > 0) ? ['hidden'] : [];
    found.tHead.replaceChildren(row(['', ...parts.map((part) => PART_WORDS[part]), 'in all', ...hidden], 'th'));
    found.tBodies[0].replaceChildren(...means.map((rank, i) => row([
      means.length > 1 ? `rank ${i}` : 'step', ...parts.map((part) => milliseconds(rank[part])),
      milliseconds(parts.reduce((sum, part) => sum + rank[part], 0)), ...hidden.map((name) => milliseconds(rank[name])),
    ])));
  }

  function course(bars) {
    const totals = bars.map(({ ms }) => Object.values(ms).reduce((sum, part) => sum + part, 0));
    const most = Math.max(...totals, 0.01);
    const box = find('course');
    box.hidden = find('course-title').hidden = bars.length < 2;
    box.setAttribute('aria-label', `Time of a step from step ${bars[0]?.step} to ${bars.at(-1)?.step}: ${milliseconds(totals[0] ?? 0)} to ${milliseconds(totals.at(-1) ?? 0)} ms`);
    box.replaceChildren(...bars.map(({ step, ms }, i) => {
      const column = node('div', '', { className: 'column', title: `up to step ${step}: ${milliseconds(totals[i])} ms` });
      let done = 0;
      for (const part of Object.keys(PART_WORDS)) {
        if (!ms[part]) continue;
        column.append(bar(part, done, ms[part], most, true));
        done += ms[part];
      }
      return column;
    }));
    put(find('course-title'), `Time of a step since the start, mean over the ranks; the tallest is ${milliseconds(most)} ms`);
  }

  function processes(list, slowest, world) {
    const found = details.querySelector('.inside-processes');
    const now = performance.now() / 1000;
    const before = used;
    used = new Map(list.map(({ pid, cpu }) => [pid, { cpu, at: now }]));
    found.hidden = !list.length;
    found.tHead.replaceChildren(row(PROCESS_COLUMNS, 'th'));
    found.tBodies[0].replaceChildren(...list.map((process) => {
      const old = before.get(process.pid);
      const share = old && now > old.at ? `${Math.round((100 * (process.cpu - old.cpu)) / (now - old.at))} %` : '-';
      const waits = slowest && world > 1 && process.name.startsWith('rank ') && process.name !== `rank ${slowest.rank}`;
      const state = process.held ? 'suspended' : waits ? `waits for rank ${slowest.rank}, ${milliseconds(slowest.ms)} ms a step`
        : process.name === 'launcher' ? 'watches the ranks' : 'at work';
      return row([
        process.name, `${process.pid}`, process.device || '-', `${process.threads ?? '-'}`, `${(process.memory / 1e6).toFixed(0)} MB`,
        share, process.step?.toLocaleString('en') ?? '-', state,
      ]);
    }));
  }

  return {
    get isOpen() { return details.open; },
    get steps() { return details.clientWidth < 520 ? 3 : 6; }, // lanes of more are too fine to be read
    onOpen(then) { details.addEventListener('toggle', then); },
    show(reply) {
      if (reply?.trouble || reply?.empty === undefined) throw new Error('no answer');
      const { empty, processes: list = [], slowest = null, means = [] } = reply;
      put(find('empty'), empty);
      find('empty').hidden = !empty;
      find('body').hidden = !means.length;
      processes(list, slowest, means.length);
      if (!means.length) return;
      key(reply.parts);
      lanes(reply.lanes);
      table(reply.parts, means, reply.lanes.steps);
      put(find('slowest'), slowest
        ? `Rank ${slowest.rank} is the slowest: the others wait ${milliseconds(slowest.ms)} ms longer in each step.` : '');
      course(reply.course);
    },
  };
}

import { alternate, type Bench, compare, figure, type Result, type Run } from '../bench.ts';
import { openView, type Shown } from '../page/browser.ts';
import { createMeasuredRun, createScreenshots, createTree, METRIC_KEYS } from '../page/data.ts';
import {
  growRun,
  type LivePoints,
  loadFirst,
  logLive,
  openScene,
  plotsShown,
  type Scene,
  scrollMs,
  stepMs,
  viewMs,
} from '../page/measures.ts';
import { pause, percentile } from '../programs/program.ts';
import { ingest, SINGLE } from './ingest.ts';

/** Rows of a tree that a window shows at least. */
const ROWS_SHOWN = 20;
const ROW = '[role=row]:not(.grid-head)';
/** Steps that are shown one after the other. */
const STEPS = 20;

const MEASURES = [
  'load',
  'tree',
  'tree-large',
  'plot',
  'plot-pointer',
  'metrics',
  'live-point',
  'step',
  'scroll',
] as const;

export const pageViews: Bench = {
  names: [
    ...MEASURES.map((name) => `page-${name}`),
    ...['page-load-bytes', 'page-live-point-bytes', 'page-live-point-shown', 'page-scroll-p95'],
  ],
  about:
    'the page in headless Chromium, from the navigation (or the key) until it is shown: the first load, trees, plots, metrics, live points, steps and scrolling',
  engines: ['sqlite', 'postgres'],
  onlyWhenNamed: true,
  async run(run): Promise<Result[]> {
    await using scene = await openScene(run);
    const data = await createData(run, scene);
    const bytes: number[] = [];
    const live: LivePoints[] = [];
    const slowFrames: number[] = [];
    const ofTree = (branches: number) => ({
      selector: `[role=treegrid][aria-rowcount="${branches + 2}"] ${ROW}`,
      count: Math.min(ROWS_SHOWN, branches),
    });
    // The caption of the plot has a value as soon as the line of the selected trajectory has been read.
    const plotted = { selector: '.plot-found .figure', count: 2 };
    const samples = await alternate<(typeof MEASURES)[number]>(run, {
      load: async () => {
        const load = await loadFirst(scene, { selector: `a[href="/runs/${data.run.id}"]` });
        bytes.push(load.bytes);
        return load.ms;
      },
      tree: () => viewMs(scene, `/trees/${data.tree.root}`, ofTree(data.tree.branches)),
      'tree-large': () => viewMs(scene, `/trees/${data.largeTree.root}`, ofTree(data.largeTree.branches)),
      plot: () => viewMs(scene, `/trees/${data.plotTree.root}`, plotted),
      'plot-pointer': () => viewMs(scene, `/trees/${data.plotTree.root}?value=observation:/2`, plotted),
      metrics: () => viewMs(scene, `/runs/${data.run.id}`, plotsShown()),
      'live-point': async () => {
        const points = await logLive(scene, data.run);
        live.push(points);
        return points.busyMs;
      },
      step: () => stepMs(scene, `/trees/${data.screenshots}?step=1`, STEPS),
      scroll: async () => {
        const times = await scrollMs(scene, `/trees/${data.tree.root}`, ofTree(data.tree.branches));
        slowFrames.push(percentile(times, 0.95));
        return percentile(times, 0.5);
      },
    });
    const ms = (name: (typeof MEASURES)[number], aim: string, note: string) =>
      figure(run, { bench: `page-${name}`, aim, unit: 'ms', note }, samples[name]);
    const steps = `${data.plotTree.branches} branches, ${data.plotTree.allSteps} steps`;
    const points = `${data.run.pointsEach * METRIC_KEYS.length} points`;
    const shownMs = live.map((each) => each.shownMs);
    const liveBytes = live.map((each) => each.bytes);
    return [
      ms('load', '<= 300', 'no file in the cache'),
      figure(run, { bench: 'page-load-bytes', aim: '<= 102400', unit: 'B' }, bytes),
      ms('tree', '<= 200', `${data.tree.branches} branches`),
      ms('tree-large', '<= 1000', `${data.largeTree.branches} branches`),
      ms('plot', '<= 250', steps),
      ms('plot-pointer', '<= 2000', steps),
      ms('metrics', '<= 500', points),
      ms('live-point', '<= 5', 'busy time of the window'),
      figure(run, { bench: 'page-live-point-bytes', aim: '<= 2048', unit: 'B' }, liveBytes),
      figure(run, { bench: 'page-live-point-shown', aim: '<= 500', unit: 'ms', note: 'p95, from the ack' }, shownMs),
      ms('step', '<= 50', 'p50, image of 200 KB and changes of a state of 20 KB'),
      ms('scroll', '<= 17', 'p50 of frames'),
      figure(run, { bench: 'page-scroll-p95', aim: '<= 17', unit: 'ms' }, slowFrames),
    ];
  },
};

/** Creates what the page shows, in sizes reduced by `--page-scale`. */
async function createData(run: Run, { client }: Scene) {
  const scaled = (size: number) => Math.max(1, Math.round(size * run.pageScale));
  const tree = async (seed: string, branches: number, rootSteps: number, steps: number) => {
    run.showProgress(`writing ${branches} branches`);
    const root = await createTree(client, seed, { branches, rootSteps, steps });
    return { root, branches, allSteps: rootSteps + branches * steps };
  };
  const trees = {
    tree: await tree('tree', scaled(1_000), 1_000, 20),
    largeTree: await tree('large tree', scaled(20_000), 1_500, 5),
    plotTree: await tree('plot', scaled(200), 1_109, 1_137),
  };
  const pointsEach = scaled(212_500);
  run.showProgress(`writing ${pointsEach * METRIC_KEYS.length} points`);
  const id = await createMeasuredRun(client, pointsEach);
  run.showProgress('writing screenshots');
  const screenshots = await createScreenshots(client, STEPS + 2);
  return { ...trees, run: { id, pointsEach, points: pointsEach }, screenshots };
}

const OPEN_WINDOWS = 3;

export const pageIngest: Bench = {
  names: ['page-ingest'],
  about: '`ingest-single` while 3 windows show trajectories that it writes; against no such window',
  engines: ['sqlite', 'postgres'],
  onlyWhenNamed: true,
  async run(run) {
    await using scene = await openScene(run);
    const shown: Shown = { selector: ROW };
    const watch = async (trajectories: readonly string[]) => {
      const views = trajectories
        .slice(0, OPEN_WINDOWS)
        .map((id) => openView(scene.context, `${scene.url}/trees/${id}`, shown));
      const windows = await Promise.all(views);
      await pause(run.warmupSeconds + run.seconds);
      for (const { page } of windows) await page.close();
    };
    const samples = await alternate(run, {
      watched: () => ingest(run, scene.server, SINGLE, { meanwhile: watch }),
      alone: () => ingest(run, scene.server, SINGLE),
    });
    return [compare(run, { bench: 'page-ingest', aim: '>= 0.9', unit: 'steps/s' }, samples.watched, samples.alone)];
  },
};

/** A point of each series in each second of eight hours. */
const LIVE_POINTS = 8 * 60 * 60;

export const pageMemory: Bench = {
  names: ['page-memory'],
  about: 'memory of the process of a window that shows a run while 8 hours of it are logged, 20 s at a time',
  engines: ['sqlite'],
  onlyWhenNamed: true,
  async run(run) {
    await using scene = await openScene(run);
    const runId = await createMeasuredRun(scene.client, 0);
    const points = Math.round(LIVE_POINTS * run.pageScale);
    const { heapBytes, processBytes } = await growRun(scene, runId, points, (logged) =>
      run.showProgress(`point ${logged} of ${points}`),
    );
    const note = `${METRIC_KEYS.length} series of ${points} points; JavaScript ${(heapBytes / 1e6).toFixed(0)} MB`;
    return [figure(run, { bench: 'page-memory', aim: '<= 150', unit: 'MB', note }, [processBytes / 1e6])];
  },
};

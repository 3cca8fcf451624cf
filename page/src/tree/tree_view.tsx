import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { addressOf, stepOf } from '../address.ts';
import { Announcer } from '../announcer.tsx';
import { type Api, readStep, watchTree } from '../api.ts';
import { useLatest, useLoaded, usePage } from '../context.ts';
import { count, counted, nameOf, number } from '../format.ts';
import { isCommand } from '../keys.ts';
import { useWatched } from '../live.ts';
import { Lost } from '../lost.tsx';
import { StepView } from '../step/step_view.tsx';
import { BranchPlot } from './branch_plot.tsx';
import { GrowingValues } from './growing_values.ts';
import { IcicleChart } from './icicle_chart.tsx';
import { itemOf } from './item.ts';
import type { Range } from './plot_drawing.ts';
import { PlotTable } from './plot_table.tsx';
import { type Plotted, readValues } from './read_values.ts';
import { ALL_CLOSED, bestOf, gainScale, type Item, ORDERS, type Order, rootOf, rowsOf, toggled } from './rows.ts';
import { readRunTree, withRuns } from './runs_of_tree.ts';
import { boundsOf, type Series, spread } from './series.ts';
import { TreeGrid } from './tree_grid.tsx';
import { candidates, isPlotted, labelOf, type PlottedValue, SUM } from './value.ts';
import { ValueChooser } from './value_chooser.tsx';

/** A tree of trajectories: the branching plot and the rows on one step axis, and beside them the selected step. */
export function TreeView({ id }: { readonly id: string }) {
  const tree = useWatched(`tree ${id}`, (events) => watchTree(id, events));
  const { api } = usePage();
  const runId = tree.value?.find(({ trajectory }) => trajectory?.runId)?.trajectory?.runId ?? '';
  const runs = useLoaded(`runs ${runId} ${tree.value?.length}`, (signal) => readRunTree(api, runId, signal));
  // The same items as before if there are no runs: all that is derived from them stays, too.
  const own = useMemo(() => tree.value?.map(itemOf), [tree.value]);
  const items = useMemo(() => own && withRuns(own, runs.value ?? []), [own, runs.value]);
  if (items === undefined) {
    return tree.error === undefined ? (
      <p class="loading">Loading the tree …</p>
    ) : (
      <TreeOfRun runId={id} error={tree.error} />
    );
  }
  return (
    <>
      {tree.error !== undefined && <p class="problem">{tree.error}</p>}
      <LoadedTree id={id} items={items} stale={tree.stale} />
    </>
  );
}

/** Shows the tree of a run, if the address has the id of one. */
function TreeOfRun({ runId, error }: { readonly runId: string; readonly error: string }) {
  const { api, go } = usePage();
  const found = useLoaded(`run ${runId}`, async (signal) => (await api.runs.getRun({ runId }, { signal })).run);
  const mainTrajectoryId = found.value?.mainTrajectoryId ?? '';
  useEffect(() => {
    if (mainTrajectoryId !== '') go(`/trees/${mainTrajectoryId}`, { replace: true });
  }, [mainTrajectoryId]);
  if (found.error !== undefined || (found.value !== undefined && mainTrajectoryId === ''))
    return <p class="problem">{error}</p>;
  return <p class="loading">Loading the tree …</p>;
}

const ORDER_NAMES: Readonly<Record<Order, string>> = { branch: 'Branch point', gain: 'Gain', time: 'Creation' };

interface LoadedTreeProps {
  readonly id: string;
  readonly items: readonly Item[];
  readonly stale: boolean;
}

function LoadedTree({ id, items, stale }: LoadedTreeProps) {
  const { address, set } = usePage();
  const { query } = address;
  const byId = useMemo(() => new Map(items.map((item) => [item.id, item])), [items]);
  const selected = byId.get(query.get('at') ?? id) ?? rootOf(items);
  const end = Math.max(0, (selected?.end ?? 1) - 1);
  const step = Math.min(stepOf(query.get('step')) ?? end, end);
  const order = ORDERS.find((each) => each === query.get('order')) ?? 'branch';
  const find = query.get('find') ?? '';
  const closed = useMemo(() => new Set((query.get('closed') ?? '').split(',').filter((each) => each !== '')), [query]);
  const rows = useMemo(() => rowsOf(items, { order, closed, find }), [items, order, closed, find]);
  const scale = useMemo(() => gainScale(items), [items]);
  const last = useMemo(() => items.reduce((most, item) => Math.max(most, item.end - 1), 1), [items]);
  const { value, ...wanted } = plottedIn(query);
  const range: Range = { from: wanted.from ?? 0, to: wanted.to ?? last };
  const values = useValues(items, value, wanted);

  const select = (at: string, wanted?: number) => {
    const item = byId.get(at);
    if (item !== undefined) set({ at, step: Math.max(0, Math.min(item.end - 1, wanted ?? step)) }, { replace: true });
  };
  const close = (ids: Iterable<string>) => set({ closed: [...ids].join(',') }, { replace: true });
  const toggle = (row: string, open: boolean) => close(toggled(closed, row, open));
  useKeys({
    step,
    end,
    onStep: (to) => set({ step: to }, { replace: true }),
    rows: rows.map((row) => row.item.id),
    selected: selected?.id ?? '',
    onSelect: select,
  });
  const best = useMemo(() => bestOf(items), [items]);
  const searched = useMemo(
    () =>
      items.flatMap(({ id, parentId, name, search }) =>
        search === undefined ? [] : [{ id, parentId, name, ...search }],
      ),
    [items],
  );
  const [isTable, setTable] = useState(false);
  const others = useMemo(() => items.filter(({ deleted }) => !deleted).map((item) => item.id), [items]);
  const root = rootOf(items);
  const isNested = items.some(({ parentId }) => parentId !== '' && parentId !== root?.id);
  return (
    <div class="tree-page">
      <section class="tree" aria-labelledby="title">
        <header class="title-bar">
          <h1 id="title">{root === undefined ? 'Tree' : nameOf(root)}</h1>
          <span class="dim">{trajectories(items.length)}</span>
          {best !== undefined && (
            <button type="button" class="plain" onClick={() => select(best.id, best.end - 1)}>
              Best: {nameOf(best)}, {number(best.reward)}
            </button>
          )}
          <Lost stale={stale} />
          <Announcer
            text={`${trajectories(items.length)}, ${counted(
              items.reduce((sum, item) => sum + item.end - item.branchPoint - 1, 0),
              'step',
            )}`}
          />
          <span class="space" />
          {items.length > 2 && <a href={addressOf('/compare', { tree: root?.id })}>Compare by label</a>}
          {isNested && (
            <>
              {/* The branches of the root stay: without them, nothing is left to look at. */}
              <button type="button" class="plain" onClick={() => close([ALL_CLOSED, root?.id ?? ''])}>
                Collapse all
              </button>
              <button type="button" class="plain" onClick={() => close([])}>
                Expand all
              </button>
            </>
          )}
          <label>
            <span class="dim">Order</span>{' '}
            <select value={order} onChange={(event) => set({ order: event.currentTarget.value })}>
              {ORDERS.map((each) => (
                <option key={each} value={each}>
                  {ORDER_NAMES[each]}
                </option>
              ))}
            </select>
          </label>
          <input
            type="search"
            aria-label="filter by name, tag or id"
            placeholder="Filter"
            value={find}
            onInput={(event) => set({ find: event.currentTarget.value }, { replace: true })}
          />
        </header>
        <BranchPlot
          items={items}
          series={values.series}
          label={labelOf(value)}
          isOld={values.isOld}
          isLoading={values.isLoading}
          isEmpty={values.isEmpty}
          range={range}
          scale={scale}
          selected={selected?.id ?? ''}
          step={step}
          onSelect={select}
          onZoom={(to) => set({ from: to?.from, to: to?.to })}
        >
          <ValueChooser
            value={value}
            offered={values.offered}
            onChange={(to) => set({ value: to === SUM ? undefined : to })}
          />
          {values.proposed !== undefined && (
            <p class="hint">
              All lines coincide.{' '}
              <button type="button" class="plain" onClick={() => set({ value: values.proposed })}>
                Plot {labelOf(values.proposed)}
              </button>
            </p>
          )}
          {values.error !== undefined && <p class="hint">{values.error}</p>}
          <Legend />
          <button type="button" class="plain" aria-expanded={isTable} onClick={() => setTable(!isTable)}>
            Table
          </button>
          {(query.has('from') || query.has('to')) && (
            <button type="button" class="plain" onClick={() => set({ from: undefined, to: undefined })}>
              Show all steps
            </button>
          )}
        </BranchPlot>
        {isTable && <PlotTable items={rows.map(({ item }) => item)} all={items} series={values.series} range={range} />}
        {searched.length > 0 && <IcicleChart items={searched} selected={selected?.id ?? ''} onSelect={select} />}
        <TreeGrid
          rows={rows}
          range={range}
          scale={scale}
          selected={selected?.id ?? ''}
          step={step}
          onSelect={select}
          onToggle={toggle}
        />
      </section>
      {selected !== undefined && (
        <StepView
          trajectory={selected}
          step={step}
          onStep={(to) => set({ at: selected.id, step: Math.max(0, Math.min(end, to)) }, { replace: true })}
          others={others}
          nameOfId={(each) => nameOf(byId.get(each) ?? { id: each, name: '' })}
        />
      )}
    </div>
  );
}

function trajectories(number: number): string {
  return `${count(number)} ${number === 1 ? 'trajectory' : 'trajectories'}`;
}

function Legend() {
  return (
    <p class="legend">
      <span class="swatch better" /> gains on its parent
      <br />
      <span class="swatch worse" /> falls behind it
    </p>
  );
}

const NO_SERIES: ReadonlyMap<string, Series> = new Map();

/** What the plot shows, as the address says. */
interface Shown extends Pick<Plotted, 'from' | 'to'> {
  readonly value: PlottedValue;
}

function plottedIn(query: URLSearchParams): Shown {
  const wanted = query.get('value') ?? SUM;
  return {
    value: isPlotted(wanted) ? wanted : SUM,
    from: stepOf(query.get('from')),
    to: stepOf(query.get('to')),
  };
}

const keyOf = ({ value, from, to }: Shown) => `${value} ${from} ${to}`;

function useValues(items: readonly Item[], value: PlottedValue, range: Pick<Plotted, 'from' | 'to'>) {
  const { api } = usePage();
  const treeId = rootOf(items)?.id ?? '';
  const key = keyOf({ value, ...range });
  const growing = useMemo(() => new GrowingValues(), [key]);
  // What is drawn from coarse values is drawn again from fine ones.
  const [fineKey, setFineKey] = useState<string>();
  const isFine = fineKey === key;
  const version = `${items.length} ${items.reduce((sum, item) => sum + item.end, 0)} ${isFine}`;
  const read = useLatest(key, version, (signal) =>
    growing.read(
      items,
      range,
      (ids, part, points) =>
        readValues(
          api,
          { ...(ids === undefined ? { treeId } : { trajectoryIds: [...ids] }), ...part, points },
          value,
          signal,
        ),
      isFine,
    ),
  );
  useEffect(() => {
    if (read.value !== undefined && !read.isOld) setFineKey(key);
  }, [read.value, read.isOld]);
  const offered = useLoaded(`offered ${treeId} ${(rootOf(items)?.end ?? 0) > 1}`, (signal) =>
    offeredBy(api, items, signal),
  );
  const coincide = useMemo(
    () => read.value !== undefined && items.length > 1 && spread(items, read.value) < 1e-6,
    [read.value],
  );
  const proposal = useLoaded(
    `proposed ${treeId} ${coincide} ${offered.value?.length} ${items.length}`,
    async (signal) => {
      if (!coincide || offered.value === undefined) return undefined;
      return propose(api, items, offered.value, signal);
    },
  );
  return {
    series: read.value ?? NO_SERIES,
    isOld: read.isOld,
    isLoading: read.value === undefined && read.error === undefined,
    isEmpty: read.value !== undefined && !read.isOld && boundsOf(read.value.values()) === undefined,
    error: read.error,
    offered: offered.value ?? [],
    proposed: coincide && proposal.value !== value ? proposal.value : undefined,
  };
}

async function offeredBy(api: Api, items: readonly Item[], signal: AbortSignal): Promise<PlottedValue[]> {
  const root = rootOf(items);
  if (root === undefined || root.end === 0) return [];
  return candidates((await readStep(api, root.id, Math.min(1, root.end - 1), signal)).step);
}

/** Trajectories in which a proposal is searched, and values that are compared. */
const [PROPOSAL_BRANCHES, PROPOSAL_VALUES] = [8, 12];

/** Returns the value in which branches part from their parents most, undefined if they part in none. */
async function propose(
  api: Api,
  items: readonly Item[],
  offered: readonly PlottedValue[],
  signal: AbortSignal,
): Promise<PlottedValue | undefined> {
  const some = items.filter((item) => !item.deleted).slice(0, PROPOSAL_BRANCHES);
  const trajectoryIds = some.map((item) => item.id);
  // Actions differ at once and say little; observations show what came of them.
  const values = offered.filter((value) => !value.startsWith('action:')).slice(0, PROPOSAL_VALUES);
  let best: PlottedValue | undefined;
  let most = 1e-6;
  for (const value of values) {
    const size = spread(some, await readValues(api, { trajectoryIds }, value, signal));
    if (size > most) [best, most] = [value, size];
  }
  return best;
}

interface KeyTargets {
  readonly step: number;
  readonly end: number;
  readonly onStep: (step: number) => void;
  readonly rows: readonly string[];
  readonly selected: string;
  readonly onSelect: (id: string) => void;
}

/** `j` and `k` go from row to row, `n` and `p` from step to step, wherever the focus is outside of a text field. */
function useKeys(targets: KeyTargets): void {
  // Keys can follow each other faster than effects run.
  const latest = useRef(targets);
  latest.current = targets;
  useLayoutEffect(() => {
    const press = (event: KeyboardEvent) => {
      const { step, end, onStep, rows, selected, onSelect } = latest.current;
      if (!isCommand(event)) return;
      const row = (by: number) => {
        const next = rows[rows.indexOf(selected) + by];
        if (next !== undefined) onSelect(next);
      };
      if (event.key === 'j') row(1);
      if (event.key === 'k') row(-1);
      if (event.key === 'n') onStep(Math.min(end, step + 1));
      if (event.key === 'p') onStep(Math.max(0, step - 1));
    };
    addEventListener('keydown', press);
    return () => removeEventListener('keydown', press);
  }, []);
}

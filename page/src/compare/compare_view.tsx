import type { Trajectory } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { addressOf } from '../address.ts';
import { watchEnds } from '../api.ts';
import { useLatest, useLoaded, usePage } from '../context.ts';
import { count, nameOf, number, signed, visible } from '../format.ts';
import { useWatched } from '../live.ts';
import { Lost } from '../lost.tsx';
import { MetricPlot, RUN_COLOURS } from '../run/metric_plot.tsx';
import { StatusMark } from '../status.tsx';
import { Table } from '../table.tsx';
import { BranchesView } from './branches_view.tsx';
import { Columns } from './columns.tsx';
import { differenceOf, differingText, idsIn } from './difference.ts';
import { type Comparison, compareTrajectories, listTree } from './read.ts';
import './compare.css';

const [LEAST, MOST] = [2, 6];

/** Two to six trajectories, or the branches of a tree by a label. */
export function CompareView() {
  const { address } = usePage();
  const treeId = address.query.get('tree');
  return treeId === null ? <TrajectoriesView /> : <BranchesView treeId={treeId} />;
}

/** Two to six trajectories: where they part, and how their rewards differ from those of the first. */
function TrajectoriesView() {
  const { api, address, set } = usePage();
  const ids = idsIn(address.query.get('ids'));
  const valid = ids.length >= LEAST && ids.length <= MOST;
  const watched = useWatched(`ends ${ids.join()}`, (events) => watchEnds(valid ? ids : [], events));
  const { value, isOld, error } = useLatest(`compare ${ids.join()}`, `${watched.value}`, (signal) =>
    valid ? compareTrajectories(api, ids, signal) : Promise.resolve([]),
  );
  if (!valid) return <p class="problem">The address must name two to six trajectories: /compare?ids=ID,ID</p>;
  const [first] = value ?? [];
  if (value === undefined || first === undefined)
    return error === undefined ? <p class="loading">Comparing …</p> : <p class="problem">{error}</p>;
  const lines = value.map(({ trajectory, rewards }, place) => ({
    name: nameOf(trajectory),
    place,
    series: rewards,
    points: Number(trajectory.nextStepNumber),
  }));
  const differences = lines.slice(1).map((line) => ({ ...line, series: differenceOf(first.rewards, line.series) }));
  return (
    <div class="rollout" aria-busy={isOld}>
      <header class="title-bar">
        <h1>Comparison with {nameOf(first.trajectory)}</h1>
        <AddTrajectory treeId={first.trajectory.treeId} ids={ids} onAdd={(id) => set({ ids: [...ids, id].join() })} />
        <Lost stale={watched.stale} />
        <span class="space" />
        <a href={addressOf('/compare', { tree: first.trajectory.treeId })}>Compare branches by label</a>
      </header>
      {error !== undefined && <p class="problem">{error}</p>}
      <section aria-label="rewards" class="plots">
        <div class="metric-place">
          <MetricPlot title="Sum of rewards" lines={lines} smooth={0} onZoom={() => undefined} />
        </div>
        <div class="metric-place">
          <MetricPlot
            title={`Difference from ${nameOf(first.trajectory)}`}
            lines={differences}
            smooth={0}
            onZoom={() => undefined}
          />
        </div>
      </section>
      <section aria-label="differences">
        <Table
          columns={[
            'Trajectory',
            'Status',
            { n: 'Shared steps' },
            'First difference',
            { n: 'Reward' },
            { n: 'Difference' },
            'Remove',
          ]}
        >
          {value.map((each, place) => (
            <ComparedRow
              key={each.trajectory.id}
              {...each}
              place={place}
              onRemove={
                ids.length > LEAST
                  ? () => set({ ids: ids.filter((id) => id !== each.trajectory.id).join(), from: undefined })
                  : undefined
              }
            />
          ))}
        </Table>
      </section>
      <Columns compared={value} />
    </div>
  );
}

interface AddTrajectoryProps {
  readonly treeId: string;
  readonly ids: readonly string[];
  readonly onAdd: (id: string) => void;
}

function AddTrajectory({ treeId, ids, onAdd }: AddTrajectoryProps) {
  const { api } = usePage();
  const tree = useLoaded(`tree ${treeId}`, (signal) => listTree(api, treeId, signal));
  const others = (tree.value ?? []).filter(({ id }) => !ids.includes(id));
  if (others.length === 0 || ids.length >= MOST) return null;
  return (
    <select aria-label="add a trajectory" value="" onChange={(event) => onAdd(event.currentTarget.value)}>
      <option value="">Add a trajectory</option>
      {others.map((each: Trajectory) => (
        <option key={each.id} value={each.id}>
          {nameOf(each)}
        </option>
      ))}
    </select>
  );
}

interface ComparedRowProps extends Comparison {
  readonly place: number;
  /** Undefined if no fewer trajectories can be compared. */
  readonly onRemove: (() => void) | undefined;
}

function ComparedRow({ trajectory, difference, place, onRemove }: ComparedRowProps) {
  const first = difference?.firstDifference;
  const at = first?.stepNumber ?? trajectory.nextStepNumber - 1n;
  return (
    <tr>
      <th scope="row">
        <span class="swatch" style={{ background: `var(${RUN_COLOURS[place % RUN_COLOURS.length]})` }} />{' '}
        <a href={addressOf(`/trees/${trajectory.id}`, { at: trajectory.id, step: at })}>{nameOf(trajectory)}</a>
      </th>
      <td>
        <StatusMark status={trajectory.status} />
      </td>
      <td class="n">{difference === undefined ? '' : count(difference.sharedSteps)}</td>
      <td class="words">
        {first !== undefined && (
          <>
            step {count(first.stepNumber)}
            {first.field !== '' && `, ${visible(first.field)}`}: <del>{short(differingText(first.valueJson))}</del>{' '}
            <ins>{short(differingText(first.otherValueJson))}</ins>
          </>
        )}
        {difference !== undefined && first === undefined && <span class="dim">none</span>}
      </td>
      <td class="n">{number(trajectory.rewardSum)}</td>
      <td class="n">{difference === undefined ? '' : signed(difference.otherRewardSum - difference.rewardSum)}</td>
      <td>
        {onRemove !== undefined && (
          <button type="button" class="plain" aria-label={`remove ${nameOf(trajectory)}`} onClick={onRemove}>
            Remove
          </button>
        )}
      </td>
    </tr>
  );
}

/** Longer values are cut. */
const SHORT = 60;

function short(json: string): string {
  return visible(json.length > SHORT ? `${json.slice(0, SHORT)} …` : json);
}

import { addressOf } from '../address.ts';
import { type Comparison, compareTrajectories } from '../api.ts';
import { useLoaded, usePage } from '../context.ts';
import { count, nameOf, number, signed, visible } from '../format.ts';
import { MetricPlot, RUN_COLOURS } from '../run/metric_plot.tsx';
import { StatusMark } from '../status.tsx';

const [LEAST, MOST] = [2, 6];

/** Two to six trajectories: where they part, and how their rewards differ from those of the first. */
export function CompareView() {
  const { api, address } = usePage();
  const ids = (address.query.get('ids') ?? '').split(',').filter((each) => each !== '');
  const valid = ids.length >= LEAST && ids.length <= MOST;
  const { value, error } = useLoaded(`compare ${ids.join()}`, (signal) =>
    valid ? compareTrajectories(api, ids, signal) : Promise.resolve([]),
  );
  if (!valid) return <p class="problem">The address must name two to six trajectories: /compare?ids=ID,ID</p>;
  if (value === undefined)
    return error === undefined ? <p class="loading">Comparing …</p> : <p class="problem">{error}</p>;
  const lines = value.map(({ trajectory, rewards }, place) => ({
    name: nameOf(trajectory),
    place,
    series: rewards,
    points: Number(trajectory.nextStepNumber),
  }));
  return (
    <div class="rollout">
      <header class="title-bar">
        <h1>Comparison with {value[0] === undefined ? '' : nameOf(value[0].trajectory)}</h1>
      </header>
      <section aria-label="rewards">
        <div class="metric-place">
          <MetricPlot title="Sum of rewards" lines={lines} smooth={0} onZoom={() => undefined} />
        </div>
      </section>
      <section aria-label="differences">
        <div class="scroll">
          <table class="list">
            <thead>
              <tr>
                <th scope="col">Trajectory</th>
                <th scope="col">Status</th>
                <th scope="col" class="n">
                  Shared steps
                </th>
                <th scope="col">First difference</th>
                <th scope="col" class="n">
                  Reward
                </th>
                <th scope="col" class="n">
                  Difference
                </th>
              </tr>
            </thead>
            <tbody>
              {value.map((each, place) => (
                <ComparedRow key={each.trajectory.id} {...each} place={place} />
              ))}
            </tbody>
          </table>
        </div>
      </section>
    </div>
  );
}

function ComparedRow({ trajectory, difference, place }: Comparison & { readonly place: number }) {
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
      <td>
        {first !== undefined && (
          <>
            step {count(first.stepNumber)}, {visible(first.field)}: <del>{short(first.valueJson)}</del>{' '}
            <ins>{short(first.otherValueJson)}</ins>
          </>
        )}
        {difference !== undefined && first === undefined && <span class="dim">none</span>}
      </td>
      <td class="n">{number(trajectory.rewardSum)}</td>
      <td class="n">{difference === undefined ? '' : signed(difference.otherRewardSum - difference.rewardSum)}</td>
    </tr>
  );
}

/** Longer values are cut. */
const SHORT = 60;

function short(json: string): string {
  return visible(json.length > SHORT ? `${json.slice(0, SHORT)} …` : json);
}

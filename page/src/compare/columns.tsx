import type { Step } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { addressOf, stepOf } from '../address.ts';
import { useLatest, usePage } from '../context.ts';
import { count, counted, nameOf, number } from '../format.ts';
import { observationsOf, summaryOf } from '../step/summary.ts';
import { sharedByAll } from './difference.ts';
import { type Comparison, readColumns } from './read.ts';

/** Steps that are shown at once. */
const ROWS = 12;

/** The trajectories side by side, aligned by step number. What all of them share is one line. */
export function Columns({ compared }: { readonly compared: readonly Comparison[] }) {
  const { api, address, set } = usePage();
  const ids = compared.map(({ trajectory }) => trajectory.id);
  const shared = sharedByAll(compared.map(({ difference }) => difference));
  const end = compared.reduce((most, { trajectory }) => Math.max(most, Number(trajectory.nextStepNumber)), 0);
  const from = Math.min(stepOf(address.query.get('from')) ?? shared, Math.max(0, end - 1));
  // A page of steps that is full does not change.
  const version = from + ROWS < end ? '' : String(compared.map(({ trajectory }) => trajectory.nextStepNumber));
  const { value, isOld, error } = useLatest(`columns ${ids.join()} ${from}`, version, (signal) =>
    readColumns(api, ids, { from, count: ROWS }, signal),
  );
  const numbers = Array.from({ length: Math.max(0, Math.min(ROWS, end - from)) }, (_, at) => from + at);
  const show = (to: number) => set({ from: to === shared ? undefined : to }, { replace: true });
  return (
    <section aria-labelledby="columns">
      <div class="section-bar">
        <h2 id="columns">Step by step</h2>
        <button type="button" disabled={from === 0} onClick={() => show(Math.max(0, from - ROWS))}>
          Earlier steps
        </button>
        <button type="button" disabled={from + ROWS >= end} onClick={() => show(from + ROWS)}>
          Later steps
        </button>
      </div>
      {error !== undefined && <p class="problem">{error}</p>}
      <div class="scroll" aria-busy={isOld}>
        <table class="list columns">
          <thead>
            <tr>
              <th scope="col" class="n">
                Step
              </th>
              {compared.map(({ trajectory }) => (
                <th scope="col" key={trajectory.id}>
                  {nameOf(trajectory)}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {from >= shared && shared > 0 && (
              <tr class="shared">
                <th scope="row" class="n">
                  {shared === 1 ? '0' : `0 to ${count(shared - 1)}`}
                </th>
                <td colSpan={compared.length}>{counted(shared, 'step')}, shared by all</td>
              </tr>
            )}
            {numbers.map((step) => (
              <tr key={step}>
                <th scope="row" class="n">
                  {count(step)}
                </th>
                {compared.map((each) => (
                  <Cell
                    key={each.trajectory.id}
                    compared={each}
                    number={step}
                    step={value?.get(each.trajectory.id)?.get(step)}
                  />
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

interface CellProps {
  readonly compared: Comparison;
  readonly number: number;
  /** Undefined: the trajectory has ended, or the step is not read yet. */
  readonly step: Step | undefined;
}

function Cell({ compared: { trajectory, difference }, number: at, step }: CellProps) {
  const isFirst = difference?.firstDifference !== undefined && Number(difference.firstDifference.stepNumber) === at;
  const ended = at >= Number(trajectory.nextStepNumber);
  return (
    <td class={isFirst ? 'parts' : ''}>
      {isFirst && <span class="label error">first difference</span>}
      {ended && <span class="dim">ended</span>}
      {step !== undefined && (
        <>
          <a href={addressOf(`/trees/${trajectory.id}`, { at: trajectory.id, step: at })}>{summaryOf(step)}</a>
          <p class="dim">{observationsOf(step)}</p>
          {step.reward !== undefined && <p class="figure">reward {number(step.reward)}</p>}
        </>
      )}
    </td>
  );
}

import { useMemo, useRef, useState } from 'preact/hooks';
import type { Rollout } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import type { Stage } from '../../../gen/es/anabranch/v1/run_pb.js';
import type { RunPicture } from '../../../src/client/web/index.ts';
import { dateOf } from '../api.ts';
import { useLatest, usePage } from '../context.ts';
import { count, duration, visible } from '../format.ts';
import { statusName } from '../status_name.ts';
import { Table } from '../table.tsx';
import { type AttemptsRead, begunOf, MOST_ROLLOUTS, readAttempts, versionOf } from './attempts.ts';
import { endOf, extent, type Span, timelineRows } from './spans.ts';
import { stageName } from './stage_name.ts';

/** Lines of one row. */
const MOST_LINES = 12;
/** Rows of the table. */
const MOST_ROWS = 200;

const NOTHING_READ: ReadonlyMap<string, AttemptsRead> = new Map();

/** Stages, and the attempts of each worker, on one axis of time. */
export function Timeline({ picture: { run, stages, rollouts } }: { readonly picture: RunPicture }) {
  const [open, setOpen] = useState(false);
  const begun = useMemo(() => begunOf(rollouts.values()), [rollouts]);
  const attempts = useAttempts(begun);
  const spans = useMemo(
    () => [...[...stages.values()].flatMap(stageSpan), ...begun.flatMap((each) => attemptSpans(each, attempts))],
    [stages, begun, attempts],
  );
  if (spans.length === 0) return null;
  const now = dateOf(run.endTime)?.getTime() ?? Date.now();
  const [first, last] = extent(spans, now);
  return (
    <section aria-labelledby="timeline">
      <header class="section-bar">
        <h2 id="timeline">Stages and workers</h2>
        <span class="dim">{duration((last - first) / 1000)}</span>
        {rollouts.size > MOST_ROLLOUTS && (
          <span class="dim">
            the newest {MOST_ROLLOUTS} of {count(rollouts.size)} rollouts
          </span>
        )}
        <button type="button" class="plain" aria-expanded={open} onClick={() => setOpen(!open)}>
          Table
        </button>
      </header>
      <div class="timeline">
        {timelineRows(spans, now).map((row) => (
          <div class="timeline-row" key={row.name}>
            <span class="timeline-name" title={row.name}>
              {visible(row.name)}
            </span>
            <div>
              {row.lines.slice(0, MOST_LINES).map((line) => (
                <div class="timeline-line" key={line[0]?.id}>
                  {line.map((span) => (
                    <SpanBar key={span.id} span={span} now={now} first={first} last={last} />
                  ))}
                </div>
              ))}
            </div>
          </div>
        ))}
      </div>
      {open && <SpanTable spans={spans} now={now} first={first} />}
    </section>
  );
}

interface SpanBarProps {
  readonly span: Span;
  readonly now: number;
  readonly first: number;
  readonly last: number;
}

function SpanBar({ span, now, first, last }: SpanBarProps) {
  const part = (time: number) => `${((time / (last - first)) * 100).toFixed(3)}%`;
  const length = endOf(span, now) - span.start;
  return (
    <span
      class={`span s-${statusName(span.status)}`}
      title={`${span.text}, ${statusName(span.status)}, ${duration(length / 1000)}${span.message && `: ${span.message}`}`}
      style={{ left: part(span.start - first), width: `max(2px, calc(${part(length)} - 1px))` }}
    />
  );
}

function SpanTable({ spans, now, first }: Omit<SpanBarProps, 'span' | 'last'> & { readonly spans: readonly Span[] }) {
  return (
    <Table
      label="values of the timeline"
      columns={['What', 'Worker', 'Status', { n: 'Begins after' }, { n: 'Duration' }, 'Message']}
    >
      {spans.slice(0, MOST_ROWS).map((span) => (
        <tr key={span.id}>
          <th scope="row">{span.text}</th>
          <td>{span.row === STAGES ? '' : visible(span.row)}</td>
          <td>{statusName(span.status)}</td>
          <td class="n">{duration((span.start - first) / 1000)}</td>
          <td class="n">{duration((endOf(span, now) - span.start) / 1000)}</td>
          <td class="words">{span.message}</td>
        </tr>
      ))}
    </Table>
  );
}

/** Reads the attempts of rollouts, and again those of rollouts that change. */
function useAttempts(rollouts: readonly Rollout[]): ReadonlyMap<string, AttemptsRead> {
  const { api } = usePage();
  const known = useRef(NOTHING_READ);
  const version = rollouts.map((rollout) => `${rollout.id} ${versionOf(rollout)}`).join();
  const read = useLatest('attempts', version, async (signal) => {
    known.current = await readAttempts(api, rollouts, known.current, signal);
    return known.current;
  });
  return read.value ?? NOTHING_READ;
}

const STAGES = 'Stages';

function stageSpan(stage: Stage): Span[] {
  const start = dateOf(stage.startTime)?.getTime();
  const end = dateOf(stage.endTime)?.getTime();
  const { id, status } = stage;
  return start === undefined ? [] : [{ id, row: STAGES, start, end, text: stageName(stage), status, message: '' }];
}

/** Attempts on the lines of their workers: those that lost their lease, too. */
function attemptSpans(rollout: Rollout, read: ReadonlyMap<string, AttemptsRead>): Span[] {
  const { id, groupNumber, number } = rollout;
  return (read.get(id)?.attempts ?? []).flatMap((attempt) => {
    const start = dateOf(attempt.claimTime)?.getTime();
    if (start === undefined) return [];
    const text = `group ${groupNumber}, rollout ${number}, attempt ${attempt.number}`;
    return {
      id: `${id} ${attempt.number}`,
      row: attempt.workerId,
      start,
      end: dateOf(attempt.endTime)?.getTime(),
      text,
      status: attempt.status,
      message: visible(attempt.message),
    };
  });
}

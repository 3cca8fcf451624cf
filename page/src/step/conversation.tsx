import { useState } from 'preact/hooks';
import type { Step } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { Api } from '../api.ts';
import { useLoaded, usePage } from '../context.ts';
import { count, visible } from '../format.ts';
import { JsonView, TextView } from './content.tsx';
import { type Message, messagesOf, type Part } from './messages.ts';

/** Steps before the shown one whose messages are read, until the reader wants more. */
const STEPS = 40;

interface ConversationProps {
  readonly trajectoryId: string;
  readonly step: Step;
  readonly onStep: (step: number) => void;
}

/** The conversation up to a step, inherited messages included. Nothing if the step is no part of one. */
export function Conversation({ trajectoryId, step, onStep }: ConversationProps) {
  return messagesOf(step).length === 0 ? null : (
    <Shown key={trajectoryId} trajectoryId={trajectoryId} last={Number(step.stepNumber)} onStep={onStep} />
  );
}

interface ShownProps extends Pick<ConversationProps, 'trajectoryId' | 'onStep'> {
  readonly last: number;
}

function Shown({ trajectoryId, last, onStep }: ShownProps) {
  const { api } = usePage();
  const [wanted, setWanted] = useState(STEPS);
  const start = Math.max(0, last + 1 - wanted);
  const { value, isOld, error } = useLoaded(`conversation ${trajectoryId} ${start} ${last}`, (signal) =>
    readMessages(api, trajectoryId, start, last + 1, signal),
  );
  return (
    <section class="conversation" aria-busy={isOld}>
      <h3>Conversation</h3>
      {error !== undefined && <p class="problem">{error}</p>}
      {start > 0 && (
        <button type="button" class="plain" onClick={() => setWanted(2 * wanted)}>
          Show earlier messages
        </button>
      )}
      <ol>
        {(value ?? []).map(({ number, message }, at) => (
          <li
            key={`${number} ${at}`}
            class={message.role === 'user' ? 'user' : ''}
            aria-current={number === last ? 'step' : undefined}
          >
            <p>
              <span class="label">{visible(message.role)}</span>{' '}
              <button
                type="button"
                class="plain figure"
                title={`go to step ${count(number)}`}
                onClick={() => onStep(number)}
              >
                {count(number)}
              </button>
            </p>
            {message.parts.map((part, index) => (
              <PartView key={index} part={part} />
            ))}
          </li>
        ))}
      </ol>
    </section>
  );
}

function PartView({ part: { kind, text, name = '', isError = false } }: { readonly part: Part }) {
  if (kind === 'note') return <p class="dim">{visible(text)}</p>;
  if (kind === 'reasoning') return text === '' ? <p class="dim">reasoning</p> : <TextView text={text} />;
  return (
    <>
      {kind === 'call' && <p class="mono">{visible(name)}</p>}
      {isError && <span class="label error">error</span>}
      {kind === 'call' ? <JsonView json={text} /> : <TextView text={text} code={kind === 'result'} />}
    </>
  );
}

interface Numbered {
  readonly number: number;
  readonly message: Message;
}

async function readMessages(
  api: Api,
  trajectoryId: string,
  start: number,
  end: number,
  signal: AbortSignal,
): Promise<Numbered[]> {
  const found: Numbered[] = [];
  const request = { trajectoryId, startStepNumber: BigInt(start), endStepNumber: BigInt(end) };
  for await (const { steps } of api.trajectories.readSteps(request, { signal })) {
    for (const step of steps)
      found.push(...messagesOf(step).map((message) => ({ number: Number(step.stepNumber), message })));
  }
  return found;
}

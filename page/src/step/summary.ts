import type { Content, Step } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { visible } from '../format.ts';
import { textOfTensor } from './numbers.ts';

/** Longer actions and observations are cut. */
const SUMMARY_LENGTH = 140;

/** Returns the actions of a step in a line. */
export function summaryOf(step: Step): string {
  const actions = step.actions.map(({ type, name, content }) => lineOf(name || type, content));
  return actions.filter((text) => text !== '').join(' · ') || 'observation';
}

/** Returns the observations of a step in a line. Empty if it has none. */
export function observationsOf(step: Step): string {
  return step.observations.map(({ type, content }) => lineOf(type, content)).join(' · ');
}

/** Numbers with many digits are hard to compare. The step itself shows all of them. */
function shortNumbers(json: string | undefined): string | undefined {
  return json
    ?.slice(0, 8 * SUMMARY_LENGTH)
    .replaceAll(/(?<=[[,:\s]|^)-?\d+\.\d{5,}(?:[eE][-+]?\d+)?(?=[\],}\s]|$)/g, (digits) =>
      String(Number(Number(digits).toPrecision(5))),
    );
}

function lineOf(name: string, content: Content | undefined): string {
  const json = content?.json ?? (content?.tensor && textOfTensor(content.tensor));
  const text = content?.text ?? shortNumbers(json) ?? content?.uri ?? content?.mediaType ?? '';
  const start = text.length > SUMMARY_LENGTH ? `${text.slice(0, SUMMARY_LENGTH)} …` : text;
  return visible([name, start].filter((part) => part !== '').join(' '));
}

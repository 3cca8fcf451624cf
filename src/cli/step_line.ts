/** One line for a step: number, reward, what was done and what came back, what is special about it. */
import type { Content, Step } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { cut, type Paint, printable, shortNumber, widthOf } from './columns.ts';

const NUMBER_COLUMNS = 7;
const REWARD_COLUMNS = 7;
/** Of each text no more is looked at: contents may be large, and a line is short. */
const LOOKED_AT = 400;

export function stepLine(step: Step, { columns, paint }: { readonly columns: number; readonly paint: Paint }): string {
  const number = String(step.stepNumber).padStart(NUMBER_COLUMNS);
  const reward = rewardText(step).padStart(REWARD_COLUMNS);
  const marks = marksOf(step);
  const room = columns - widthOf(number) - widthOf(reward) - widthOf(marks) - 4 - (marks === '' ? 0 : 2);
  const told = cut(printable(toldText(step)), Math.max(1, room));
  const ended = step.terminated || step.truncated;
  const shownMarks = marks === '' ? '' : `  ${ended ? paint.yellow(marks) : paint.dim(marks)}`;
  return `${paint.bold(number)}  ${paint.cyan(reward)}  ${told}${shownMarks}`.trimEnd();
}

function rewardText({ reward }: Step): string {
  if (reward === undefined) return '–';
  return reward > 0 ? `+${shortNumber(reward)}` : shortNumber(reward);
}

/** `push 1 → [0.1,0.2]` */
function toldText({ actions, observations }: Step): string {
  const done = actions.map(({ type, name, content }) => [name || type, contentText(content)].join(' ').trim());
  const seen = observations.map(({ type, content, isError }) => {
    return (isError ? 'error: ' : '') + (contentText(content) || type);
  });
  return [done.join('; '), seen.join('; ')].filter((text) => text !== '').join(' → ');
}

function contentText(content: Content | undefined): string {
  if (content === undefined) return '';
  const text = content.text ?? content.json ?? content.uri;
  if (text !== undefined) return text.slice(0, LOOKED_AT);
  const size = content.data === undefined ? content.size : content.data.length;
  return `<${content.mediaType || 'bytes'}, ${size} bytes>`;
}

/** `terminated [env, agent]` */
function marksOf({ terminated, truncated, states }: Step): string {
  const names = states.map(({ name }) => cut(printable(name), 12));
  const shown = names.length > 3 ? [...names.slice(0, 2), `${names.length - 2} more`] : names;
  const parts = [
    terminated ? 'terminated' : '',
    truncated ? 'truncated' : '',
    shown.length > 0 ? `[${shown.join(', ')}]` : '',
  ];
  return parts.filter((part) => part !== '').join(' ');
}

/** Shows a run while it goes on: a picture on a terminal, lines elsewhere, JSON for a script. */
import { create, toJsonString } from '@bufbuild/protobuf';
import { WatchRunResponseSchema } from '../../gen/es/anabranch/v1/run_service_pb.js';
import type { RunPicture } from '../client/index.ts';
import { cut, type Paint, printable } from './columns.ts';
import type { Output } from './context.ts';
import { leftText } from './progress_text.ts';
import { JSON_FORM, write } from './server_access.ts';
import { stageTitle } from './stage_lines.ts';
import { isTerminal } from './status.ts';
import { groupText, groupTitle, rolloutText, rolloutTitle, stageTitleIn } from './watch_rollouts.ts';
import { progressText, runText, screenLines, stageText } from './watch_text.ts';

export interface WatchDisplay {
  show(picture: RunPicture): Promise<void>;
  /** The connection is gone; it is made again by itself, which may take more than one try. */
  cut(error: unknown): Promise<void>;
}

/** What changed, in the form of WatchRun's answers. */
export function jsonWatch(output: Output, complaints: Output): WatchDisplay {
  const notice = cutNotice(complaints);
  return {
    async show({ run, progress, changed }) {
      notice.over();
      const message = create(WatchRunResponseSchema, {
        ...(changed.run ? { run } : {}),
        stages: [...changed.stages],
        groups: [...changed.groups],
        rollouts: [...changed.rollouts],
        ...(changed.progress ? { progress } : {}),
        caughtUp: true,
      });
      await write(output, `${toJsonString(WatchRunResponseSchema, message, JSON_FORM)}\n`);
    },
    cut: notice.cut,
  };
}

/** A line for the run, for each stage and for the progress, whenever it reads differently from before. */
export function lineWatch(output: Output, complaints: Output, paint: Paint): WatchDisplay {
  const notice = cutNotice(complaints);
  const told = new Map<string, string>();
  const tell = async (key: string, name: string, text: string, aside = '') => {
    if (text === '' || told.get(key) === text) return;
    told.set(key, text);
    await write(output, `${paint.bold(printable(name))}: ${text}${aside}\n`);
  };
  return {
    async show({ run, stages, progress, changed }) {
      notice.over();
      const titleOf = (stageId: string) => stageTitleIn(stages, stageId);
      if (changed.run && !isTerminal(run.status)) await tell('run', run.name, runText(run));
      for (const stage of changed.stages) await tell(stage.id, stageTitle(stage), stageText(stage));
      for (const each of changed.rollouts)
        await tell(each.id, rolloutTitle(each, titleOf(each.stageId)), rolloutText(each));
      for (const each of changed.groups) await tell(each.id, groupTitle(each, titleOf(each.stageId)), groupText(each));
      // The time that is left is another one every second, and no reason for a line.
      const left = leftText(progress);
      await tell('progress', 'progress', progressText(progress), left === undefined ? '' : `, ${left} left`);
      // How it ended comes last, whatever else came with it.
      if (isTerminal(run.status)) await tell('run', run.name, runText(run));
    },
    cut: notice.cut,
  };
}

const UP_AND_CLEAR = (lines: number) => `\u001b[${lines}A\u001b[0J`;

/** One picture that is drawn over again. What stands when it ends stays. */
export function screenWatch(output: Output, columns: () => number, paint: Paint): WatchDisplay {
  let picture: readonly string[] = [];
  let drawn = 0;
  const draw = async (lines: readonly string[]) => {
    const clear = drawn === 0 ? '' : UP_AND_CLEAR(drawn);
    drawn = lines.length;
    await write(output, `${clear}${lines.join('\n')}\n`);
  };
  return {
    show(next) {
      picture = screenLines(next, { columns: columns(), paint });
      return draw(picture);
    },
    cut: (error) => draw([...picture, paint.yellow(cut(printable(cutText(error)), columns()))]),
  };
}

/** Tells of a cut once, not of every try. */
function cutNotice(complaints: Output): { cut(error: unknown): Promise<void>; over(): void } {
  let told = false;
  return {
    async cut(error) {
      if (!told) await write(complaints, `${cutText(error)}\n`);
      told = true;
    },
    over() {
      told = false;
    },
  };
}

function cutText(error: unknown): string {
  return `The connection was cut; trying again. (${error instanceof Error ? error.message : error})`;
}

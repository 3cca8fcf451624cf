/** Shows a live run: a picture on a terminal, lines elsewhere, JSON for scripts. */
import { create } from '@bufbuild/protobuf';
import { WatchRunResponseSchema } from '../../gen/es/anabranch/v1/run_service_pb.js';
import type { RunPicture } from '../client/index.ts';
import { cut, type Paint, printable } from './columns.ts';
import type { Output } from './context.ts';
import { messageJson } from './json_text.ts';
import { leftText } from './progress_text.ts';
import { write } from './server_access.ts';
import { stageTitle } from './stage_lines.ts';
import { isTerminal } from './status.ts';
import { groupText, groupTitle, rolloutText, rolloutTitle, stageTitleIn } from './watch_rollouts.ts';
import { progressText, runText, screenLines, stageText } from './watch_text.ts';

export interface WatchDisplay<Picture = RunPicture> {
  show(picture: Picture): Promise<void>;
  /** Called when the connection is lost. The client reconnects, and may call this several times. */
  cut(error: unknown): Promise<void>;
}

/** Prints what changed, in the form of WatchRun's responses. */
export function jsonWatch(output: Output, errors: Output): WatchDisplay {
  const notice = cutNotice(errors);
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
      await write(output, `${messageJson(WatchRunResponseSchema, message)}\n`);
    },
    cut: notice.cut,
  };
}

/** Prints a line for the run, a stage or the progress when its text changes. */
export function lineWatch(output: Output, errors: Output, paint: Paint): WatchDisplay {
  const notice = cutNotice(errors);
  const printed = new Map<string, string>();
  const tell = async (key: string, name: string, text: string, aside = '') => {
    if (text === '' || printed.get(key) === text) return;
    printed.set(key, text);
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
      // The remaining time changes every second, so it alone causes no line.
      const left = leftText(progress);
      await tell('progress', 'progress', progressText(progress), left === undefined ? '' : `, ${left} left`);
      // The end of the run is printed last, after everything else in the same picture.
      if (isTerminal(run.status)) await tell('run', run.name, runText(run));
    },
    cut: notice.cut,
  };
}

const UP_AND_CLEAR = (lines: number) => `\u001b[${lines}A\u001b[0J`;

/** Draws one picture of a run and redraws it in place. The last picture stays on the terminal. */
export function screenWatch(output: Output, columns: () => number, paint: Paint): WatchDisplay {
  const { show, cut } = redrawing(output, columns, paint);
  return { show: (picture) => show(screenLines(picture, { columns: columns(), paint })), cut };
}

/** Draws lines and redraws them in place. The lines must fit the terminal. A lost connection is named below them. */
export function redrawing(output: Output, columns: () => number, paint: Paint): WatchDisplay<readonly string[]> {
  let shown: readonly string[] = [];
  let drawn = 0;
  const draw = async (lines: readonly string[]) => {
    const clear = drawn === 0 ? '' : UP_AND_CLEAR(drawn);
    drawn = lines.length;
    await write(output, `${clear}${lines.join('\n')}\n`);
  };
  return {
    show(lines) {
      shown = lines;
      return draw(lines);
    },
    cut: (error) => draw([...shown, paint.yellow(cut(printable(cutText(error)), columns()))]),
  };
}

/** Reports a lost connection once, not once per retry. */
export function cutNotice(errors: Output): { cut(error: unknown): Promise<void>; over(): void } {
  let reported = false;
  return {
    async cut(error) {
      if (!reported) await write(errors, `${cutText(error)}\n`);
      reported = true;
    },
    over() {
      reported = false;
    },
  };
}

function cutText(error: unknown): string {
  return `The connection was lost; reconnecting. (${error instanceof Error ? error.message : error})`;
}

/**
 * A checkpoint saver for LangGraph.js, in Anabranch.
 *
 *     import { AnabranchSaver } from 'anabranch/langgraph';
 *     import { connectClient } from 'anabranch/client';
 *
 *     const graph = workflow.compile({ checkpointer: new AnabranchSaver(connectClient()) });
 */
import { namingMissing } from '../missing_package.ts';
import type { AnabranchSaver as Saver } from './saver.ts';

export type { AnabranchSaverOptions } from './saver.ts';

const saver = await import('./saver.ts').catch(namingMissing('anabranch/langgraph', '@langchain/langgraph-checkpoint'));

export const AnabranchSaver: typeof Saver = saver.AnabranchSaver;
export type AnabranchSaver = Saver;

"""The stages that come with Ridgeway; one line each in `STAGES`."""

from pipeline.lookup import Table

STAGES: Table = {
    "AskServer": "stages.ask_server:AskServer",
    "BeginSteps": "stages.steps:BeginSteps",
    "Cite": "stages.cite:Cite",
    "Collect": "stages.steps:Collect",
    "Decide": "stages.steps:Decide",
    "Decode": "stages.decode:Decode",
    "Embed": "stages.embed:Embed",
    "EmbedQueries": "stages.embed:EmbedQueries",
    "EndSteps": "stages.steps:EndSteps",
    "Fetch": "stages.fetch:Fetch",
    "Fuse": "stages.search:Fuse",
    "Generate": "stages.generate:Generate",
    "IndexVectors": "stages.index:IndexVectors",
    "IndexWords": "stages.index:IndexWords",
    "ListPages": "stages.read:ListPages",
    "NextQueries": "stages.steps:NextQueries",
    "Prefill": "stages.prefill:Prefill",
    "Prune": "stages.prune:Prune",
    "ReadPages": "stages.read:ReadPages",
    "Recognize": "stages.recognize:Recognize",
    "Search": "stages.search:Search",
    "SearchWords": "stages.search:SearchWords",
    "Split": "stages.split:Split",
    "StoreChunks": "stages.fetch:StoreChunks",
    "WritePrompt": "stages.prompt:WritePrompt",
}

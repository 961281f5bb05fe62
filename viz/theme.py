"""How the page looks: one Gradio theme with system fonts, and the page's own style sheet.

Owns colours, type and spacing of everything outside the panels. Never knows what the parts do.
"""

from __future__ import annotations

from pathlib import Path

import gradio as gr

STATIC = Path(__file__).resolve().parent / "static" / "page"

FONT = ["system-ui", "-apple-system", "Segoe UI", "sans-serif"]
FONT_MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "monospace"]


def theme() -> gr.themes.Base:
    """The theme: quiet greys, one accent, no font that would have to be fetched."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.indigo,
        secondary_hue=gr.themes.colors.indigo,
        neutral_hue=gr.themes.colors.slate,
        spacing_size=gr.themes.sizes.spacing_sm,
        radius_size=gr.themes.sizes.radius_md,
        text_size=gr.themes.sizes.text_md,
        font=FONT,
        font_mono=FONT_MONO,
    ).set(
        body_text_color_subdued="*neutral_500",
        body_text_color_subdued_dark="*neutral_400",
        body_background_fill="*neutral_50",
        body_background_fill_dark="*neutral_950",
        block_background_fill="white",
        block_background_fill_dark="*neutral_900",
        block_border_color="*neutral_200",
        block_border_color_dark="*neutral_800",
        block_border_width="1px",
        block_shadow="none",
        block_label_background_fill="transparent",
        block_label_background_fill_dark="transparent",
        block_label_border_width="0px",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        button_primary_text_color="white",
        button_secondary_background_fill="white",
        button_secondary_background_fill_dark="*neutral_800",
        button_secondary_border_color="*neutral_300",
        button_secondary_border_color_dark="*neutral_700",
        button_border_width="1px",
        input_border_width="1px",
        input_background_fill="white",
        input_background_fill_dark="*neutral_900",
        input_border_color="*neutral_300",
        input_border_color_dark="*neutral_700",
    )


def css() -> str:
    """The page's own style sheet."""
    return (STATIC / "page.css").read_text(encoding="utf-8")
